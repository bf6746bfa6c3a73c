"""The table of Services that the server of native sockets gets."""

from __future__ import annotations

from typing import Any

import pytest

from pinnace.network.native.services import (
    BACKEND,
    NOT_SERVED,
    SERVICE,
    TOPOLOGY_MODE,
    ServiceEndpoint,
    encode,
    is_plain,
    table,
)

WEB = ServiceEndpoint("10.96.0.20", 80)


def service(name: str = "web", **spec: Any) -> dict[str, Any]:
    ports = [{"name": "http", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}]
    whole = {"type": "ClusterIP", "clusterIP": WEB.host, "ports": ports} | spec
    return {"metadata": {"namespace": "default", "name": name}, "spec": whole}


def endpoint_slice(*endpoints: dict[str, Any], name: str = "web", **more: Any) -> dict[str, Any]:
    metadata = {"namespace": "default", "labels": {"kubernetes.io/service-name": name}}
    ports = [{"name": "http", "port": 8080}, {"name": "dns", "port": 5353}]
    return {"metadata": metadata, "addressType": "IPv4", "endpoints": list(endpoints), "ports": ports} | more


def endpoint(address: str, **conditions: bool) -> dict[str, Any]:
    return {"addresses": [address], "conditions": conditions}


def test_ready_endpoints_of_all_slices_by_address_and_port() -> None:
    slices = [
        endpoint_slice(endpoint("10.244.0.2", ready=True), endpoint("10.244.0.3", ready=False)),
        endpoint_slice(endpoint("10.244.1.2")),
        endpoint_slice(endpoint("10.244.1.9"), name="other"),
        endpoint_slice(endpoint("fd00::1"), addressType="IPv6"),
    ]
    assert table([service()], slices) == {
        WEB: (ServiceEndpoint("10.244.0.2", 8080), ServiceEndpoint("10.244.1.2", 8080))
    }


def test_without_ready_endpoints_there_is_no_entry() -> None:
    assert table([service()], [endpoint_slice(endpoint("10.244.0.3", ready=False))]) == {}
    assert table([service()], []) == {}
    assert table([service()], [endpoint_slice(ports=None, endpoints=None)]) == {}


@pytest.mark.parametrize(
    "spec",
    [
        {"clusterIP": "None"},
        {"sessionAffinity": "ClientIP"},
        {"internalTrafficPolicy": "Local"},
        {"trafficDistribution": "PreferClose"},
        {"type": "ExternalName"},
    ],
)
def test_what_is_not_plain_is_left_to_kube_proxy(spec: dict[str, Any]) -> None:
    assert not is_plain(service(**spec))
    assert table([service(**spec)], [endpoint_slice(endpoint("10.244.0.2"))]) == {}


def test_hints_about_zones_are_left_to_kube_proxy() -> None:
    about = service()
    about["metadata"]["annotations"] = {TOPOLOGY_MODE: "Auto"}
    assert not is_plain(about)


@pytest.mark.parametrize("label", sorted(NOT_SERVED))
def test_services_that_kube_proxy_does_not_serve_have_no_entry(label: str) -> None:
    about = service(externalIPs=["203.0.113.7"])
    about["metadata"]["labels"] = {label: "another"}
    assert table([about], [endpoint_slice(endpoint("10.244.0.2"))]) == {}


@pytest.mark.parametrize("label", sorted(NOT_SERVED))
def test_slices_that_kube_proxy_does_not_serve_have_no_endpoints(label: str) -> None:
    hidden, plain = endpoint_slice(endpoint("10.244.0.2")), endpoint_slice(endpoint("10.244.0.3"))
    hidden["metadata"]["labels"][label] = ""
    assert table([service()], [hidden, plain]) == {WEB: (ServiceEndpoint("10.244.0.3", 8080),)}


@pytest.mark.parametrize("affinity", ["None", "ClientIP"])
@pytest.mark.parametrize(
    "outer",
    [
        {"spec": {"externalIPs": ["203.0.113.7", "2001:db8::7"]}},
        {"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}, {"hostname": "balancer.example"}]}}},
    ],
)
def test_addresses_outside_of_the_cluster_are_left_to_kube_proxy(outer: dict[str, Any], affinity: str) -> None:
    about = service(sessionAffinity=affinity, **outer.get("spec", {})) | {"status": outer.get("status", {})}
    assert table([about], []) == {ServiceEndpoint("203.0.113.7", 80): ()}


def test_the_encoded_table_is_in_order_of_addresses_and_points_to_backends() -> None:
    one, two = ServiceEndpoint("10.96.0.2", 443), ServiceEndpoint("10.96.0.10", 53)
    data = encode(
        {
            two: (ServiceEndpoint("10.244.0.9", 53),),
            one: (ServiceEndpoint("10.244.0.1", 1), ServiceEndpoint("10.244.0.2", 2)),
        }
    )
    services = [SERVICE.unpack_from(data, SERVICE.size * number) for number in range(3)]
    assert services == [(0, 0, 0, 2), (0x0A600002, 443, 2, 0), (0x0A60000A, 53, 1, 2)]
    backends = list(BACKEND.iter_unpack(data[3 * SERVICE.size :]))
    assert backends == [(0x0AF40001, 1), (0x0AF40002, 2), (0x0AF40009, 53)]
