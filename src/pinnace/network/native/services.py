"""The pods behind Services, for connections that kube-proxy would otherwise lead to one of them.

Only what is plain is done here: a ClusterIP whose connections go to any ready endpoint. Session affinity, traffic
policies, hints about zones, and Services without ready endpoints are left to kube-proxy, on the general path. So are
the addresses that a Service has outside of the cluster, which must not be taken for hosts: they are in the table
without endpoints.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from pinnace.kube.cache import Cache
from pinnace.kube.watch import watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pinnace.kube.access import Access
    from pinnace.kube.watch import Changed, Listed

    Object = dict[str, Any]
    Table = dict["ServiceEndpoint", tuple["ServiceEndpoint", ...]]

SERVICES, SLICES = "services", "endpointslices"
SLICES_PATH = "/apis/discovery.k8s.io/v1/endpointslices"
SERVICE_NAME = "kubernetes.io/service-name"  # a label of a slice
TOPOLOGY_MODE = "service.kubernetes.io/topology-mode"  # an annotation of a Service
# Labels of Services and slices that kube-proxy does not serve.
NOT_SERVED = frozenset({"service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"})
RETRY_INTERVAL = 0.5  # seconds before the API is looked for again
PAUSE = 0.02  # seconds in which changes are collected
PAUSE_SHARE = 4  # times as long as the last table took, if that is longer: thousands of endpoints change one by one
MAX_ENDPOINTS = 0xFFFF  # of one port
SERVICE = struct.Struct("=IHHI")  # struct service in sockets/connecting.c: address, port, number of backends, the first
BACKEND = struct.Struct("=IHxx")  # struct backend: address, port


class ServiceEndpoint(NamedTuple):
    """An IPv4 address and a port."""

    host: str
    port: int


def is_served(found: Object) -> bool:
    """Whether a Service, or a slice of endpoints, is kube-proxy's."""
    return NOT_SERVED.isdisjoint(found["metadata"].get("labels", {}))


def is_plain(service: Object) -> bool:
    """Whether each connection to a Service may go to any of its ready endpoints."""
    spec = service["spec"]
    return (
        spec.get("type") in {"ClusterIP", "NodePort", "LoadBalancer"}
        and spec.get("clusterIP", "None") != "None"
        and spec.get("sessionAffinity", "None") == "None"
        and spec.get("internalTrafficPolicy", "Cluster") == "Cluster"
        and not spec.get("trafficDistribution")
        and TOPOLOGY_MODE not in service["metadata"].get("annotations", {})
    )


def table(services: Iterable[Object], slices: Iterable[Object]) -> Table:
    """The endpoints to choose from by the address and port of their Service, TCP over IPv4 only.

    There are none where kube-proxy has to choose.
    """
    by_service: dict[tuple[str, str], list[Object]] = {}
    for found in filter(is_served, slices):
        metadata = found["metadata"]
        name = metadata.get("labels", {}).get(SERVICE_NAME)
        if name and found.get("addressType") == "IPv4":
            by_service.setdefault((metadata["namespace"], name), []).append(found)
    entries: Table = {}
    for service in filter(is_served, services):
        metadata, spec = service["metadata"], service["spec"]
        own = by_service.get((metadata["namespace"], metadata["name"]), []) if is_plain(service) else []
        for port in spec.get("ports", ()):
            if port.get("protocol", "TCP") != "TCP":
                continue
            entries |= {ServiceEndpoint(host, port["port"]): () for host in _outer_addresses(service)}
            endpoints = tuple(_endpoints(own, port.get("name", "")))[:MAX_ENDPOINTS]
            if endpoints and ":" not in spec["clusterIP"]:
                entries[ServiceEndpoint(spec["clusterIP"], port["port"])] = endpoints
    return entries


def _outer_addresses(service: Object) -> Iterable[str]:
    ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress") or ()
    addresses = [*(service["spec"].get("externalIPs") or ()), *(entry.get("ip", "") for entry in ingress)]
    return (address for address in addresses if address and ":" not in address)


def _endpoints(slices: Iterable[Object], port_name: str) -> Iterable[ServiceEndpoint]:
    for found in slices:
        for port in found.get("ports") or ():
            if (port.get("name") or "") != port_name or not port.get("port"):
                continue
            for endpoint in found.get("endpoints") or ():
                if endpoint.get("conditions", {}).get("ready", True):
                    yield ServiceEndpoint(endpoint["addresses"][0], port["port"])


def encode(entries: Table) -> bytes:
    """The table as the server reads it: the number of Services, these in order of their addresses, all backends."""
    services = [SERVICE.pack(0, 0, 0, len(entries))]
    backends: list[bytes] = []
    for (address, port), endpoints in sorted(
        (((address_number(host), port), ends) for (host, port), ends in entries.items())
    ):
        services.append(SERVICE.pack(address, port, len(endpoints), len(backends)))
        backends += [BACKEND.pack(address_number(endpoint.host), endpoint.port) for endpoint in endpoints]
    return b"".join([*services, *backends])


def address_number(host: str) -> int:
    """An IPv4 address in the host's order, as the library has it."""
    return int.from_bytes(socket.inet_aton(host), "big")


class Services:
    """Watches Services and their endpoints. ``publish`` gets the encoded table, from a thread, when it has changed.

    ``access`` gives the API, or None while it is not there.
    """

    def __init__(self, access: Callable[[], Access | None], publish: Callable[[bytes], None]) -> None:
        self._access, self._publish = access, publish
        self._cache = Cache(SERVICES, SLICES)
        self._changed = threading.Event()

    def run(self) -> None:
        """For ever."""
        while (access := self._access()) is None:
            time.sleep(RETRY_INTERVAL)
        watch(access, SERVICES, self._note)
        watch(access, SLICES, self._note, path=SLICES_PATH)
        self._cache.wait_synced()
        published, took = b"", 0.0
        while True:
            self._changed.wait()
            time.sleep(max(PAUSE, PAUSE_SHARE * took))
            self._changed.clear()
            begun = time.monotonic()
            with self._cache.lock:
                encoded = encode(table(self._cache[SERVICES].values(), self._cache[SLICES].values()))
            took = time.monotonic() - begun
            if encoded != published:
                published = encoded
                self._publish(encoded)

    def _note(self, change: Listed | Changed) -> None:
        self._cache.apply(change)
        self._changed.set()
