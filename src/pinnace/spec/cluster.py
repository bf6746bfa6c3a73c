"""What all agents of a cluster have to know: ``cluster.json`` and the other names in the cluster's directory.

cluster.json            the same for all nodes, written before the first agent starts
secrets/link.key        the secret of the links
secrets/…               keys, certificates and kubeconfigs (see controlplane.pki)
nodes/<index>.json      a NodeRecord (see spec.records), written by that node's agent
ending.json             the time limit, once it ends the cluster
logs/<node>/…           the output of every process of a node
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pinnace import ownership
from pinnace.interpreter import python_argv
from pinnace.network.addresses import Ranges

if TYPE_CHECKING:
    from pathlib import Path

HEAD = 0
METRICS_DELAY = 8.0  # seconds after a node's start; until then its CPUs belong to the first pods
SANDBOX_IMAGE = "pinnace.local/pause:latest"  # of the container that holds a pod's namespaces
API_PORT = 6443  # inside the fabric; on the host it is any free one
CLOCK_SKEW = 86400.0  # seconds by which a host's clock may be behind: certificates are valid from so long ago
LIFE = 400 * 86400.0  # seconds for which certificates are valid


@dataclass(frozen=True, kw_only=True)
class Provisioning:
    """How pods that wait get Slurm jobs that serve them (see ``pinnace.podjobs``).

    ``pods_as_jobs``: every pod that does not say otherwise is a job. ``elastic``: at least and at most so many jobs
    join as nodes. ``options`` are sbatch's, for all of these jobs. ``settings`` are the site's or user's own.
    ``standing`` is the number of nodes that the cluster began with.
    """

    pods_as_jobs: bool = False
    elastic: tuple[int, int] = (0, 0)
    options: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    standing: int = 1

    @staticmethod
    def from_json(data: dict[str, Any] | None) -> Provisioning | None:
        if data is None:
            return None
        return Provisioning(
            pods_as_jobs=data["pods_as_jobs"],
            elastic=(data["elastic"][0], data["elastic"][1]),
            options=tuple(data["options"]),
            settings=data["settings"],
            standing=data["standing"],
        )


@dataclass(frozen=True, kw_only=True)
class Restriction:
    """What pods of others than the cluster's user may be (see ``controlplane.podsecurity``).

    ``level`` is one of the Pod Security Standards, ``host_paths`` are the directories of the host that pods may claim;
    they can be read, and those that are ``writable`` too can be written.
    """

    level: str
    host_paths: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()

    @staticmethod
    def from_json(data: dict[str, Any] | None) -> Restriction | None:
        if data is None:
            return None
        paths, writable = tuple(data["host_paths"]), tuple(data["writable"])
        return Restriction(level=data["level"], host_paths=paths, writable=writable)

    @property
    def read_only(self) -> tuple[str, ...]:
        return tuple(path for path in self.host_paths if path not in self.writable)


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """``cluster.json``.

    ``binds`` leads from places in every node to directories of the host. ``publish`` are ports that every host offers
    to the outside, each leading to the NodePort of the same number. With ``bridge``, the image of its helper pods or
    nothing, the head runs `pinnace bridge`, with ``bridge_options``.
    """

    name: str
    directory: Path
    ranges: Ranges
    binaries: dict[str, str]
    domain: str = "cluster.local"
    seed: str = ""
    images: str = ""
    binds: dict[str, str] = field(default_factory=dict)
    publish: tuple[int, ...] = ()
    provisioning: Provisioning | None = None
    listen: str = ""  # the network of the hosts in which every agent listens; by default where a host's name leads
    interface: str = ""  # or the network device whose address they listen at
    ports: str = ""  # the range in which it does, such as 40000-40100
    made: float = 0.0  # when, by the clock of the host that it was submitted from
    bridge: str | None = None
    bridge_options: tuple[str, ...] = ()
    restriction: Restriction | None = None
    native_sockets: bool = True  # whether pods' TCP connections are the hosts' own (see ``network.native``)
    gres: dict[str, str] = field(default_factory=dict)  # of Slurm, by Kubernetes' names of devices
    device_files: dict[str, list[str]] = field(default_factory=dict)  # patterns of paths, by the same names

    @property
    def has_host_network(self) -> bool:
        """Whether pods may be in the hosts' network: not if they are of others than the cluster's user."""
        return self.restriction is None

    def dump(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ranges": self.ranges.to_json(),
            "binaries": self.binaries,
            "domain": self.domain,
            "seed": self.seed,
            "images": self.images,
            "binds": self.binds,
            "publish": list(self.publish),
            "provisioning": asdict(self.provisioning) if self.provisioning else None,
            "listen": self.listen,
            "interface": self.interface,
            "ports": self.ports,
            "made": self.made,
            "bridge": self.bridge,
            "bridge_options": list(self.bridge_options),
            "restriction": asdict(self.restriction) if self.restriction else None,
            "native_sockets": self.native_sockets,
            "gres": self.gres,
            "device_files": self.device_files,
        }

    @staticmethod
    def load(directory: Path) -> ClusterSpec:
        ownership.require(directory, "the cluster's directory", "set PINNACE_HOME to a directory that all hosts share")
        data = json.loads((directory / "cluster.json").read_text())
        ranges = Ranges.from_json(data.pop("ranges"))
        publish = tuple(data.pop("publish"))
        data["bridge_options"] = tuple(data.get("bridge_options", ()))
        provisioning = Provisioning.from_json(data.pop("provisioning", None))
        restriction = Restriction.from_json(data.pop("restriction", None))
        return ClusterSpec(
            directory=directory,
            ranges=ranges,
            publish=publish,
            provisioning=provisioning,
            restriction=restriction,
            **data,
        )

    @property
    def secrets(self) -> Path:
        return self.directory / "secrets"

    @property
    def api_name(self) -> str:
        """The name under which the API's certificate is for those on the hosts' network; known to the user alone."""
        return (self.secrets / "api.name").read_text()

    @property
    def link_key(self) -> bytes:
        """The secret that all proofs between nodes are made with (see ``network.handshake``)."""
        return (self.secrets / "link.key").read_bytes()

    @property
    def volumes(self) -> Path:
        return self.volumes_of(self.directory)

    @staticmethod
    def volumes_of(directory: Path) -> Path:
        """Of the classes ``shared`` and ``shared-retain``: beside the clusters, because some outlive theirs."""
        directory = directory.resolve()  # as the agents do, who may find it under another name
        return directory.parent.parent / "volumes" / directory.name

    @property
    def nodes(self) -> Path:
        """The directory of the nodes' records (see ``spec.records``)."""
        return self.directory / "nodes"

    def node_file(self, index: int) -> Path:
        return self.nodes / f"{index}.json"

    @property
    def ending(self) -> Path:
        """Why the cluster ends by itself, once it has begun to."""
        return self.directory / "ending.json"

    def logs(self, node: str) -> Path:
        return self.directory / "logs" / node

    def pod_logs(self, node: str) -> Path:
        """What the pods of a node said, where that has to outlive the node."""
        return self.directory / "pods" / node

    def ranks(self, node: str) -> Path:
        """What the ranks that a node starts on other hosts have to know, while they start (see ``podjobs.ranks``)."""
        return self.directory / "ranks" / node


def agent_argv(directory: Path, *more: str, python: str = sys.executable) -> list[str]:
    """What makes a node of the cluster with this directory, wherever it runs."""
    return python_argv("pinnace.node", "--cluster", str(directory), *more, python=python)
