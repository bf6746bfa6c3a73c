"""One node: the allocation that an agent turns into it, and what that agent was told on its command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pinnace.network.native import support
from pinnace.spec.cluster import HEAD, ClusterSpec
from pinnace.spec.devices import DeviceOffer

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """What Slurm allocated to us on a host; None is all of it."""

    cpus: int | None = None
    memory: int | None = None  # bytes
    memory_cgroup: bool = False  # whether Slurm keeps the job to that by a cgroup, or not at all, or by counting


@dataclass(frozen=True, kw_only=True)
class PodReference:
    """The pod that a node is for, where it is for one alone."""

    namespace: str
    name: str
    uid: str

    @staticmethod
    def parse(text: str) -> PodReference:
        namespace, name, uid = text.split("/")
        return PodReference(namespace=namespace, name=name, uid=uid)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}/{self.uid}"

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"


@dataclass(frozen=True, kw_only=True)
class Mpi:
    """How the commands of some containers of a pod are to be started: by mpiexec, with these flags."""

    containers: tuple[str, ...]
    flags: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """One node of it: this allocation. ``labels`` and ``taints`` are what the kubelet registers with.

    ``joined`` is one that has come to a cluster that ran already. ``images`` are those of its pod, fetched while the
    kubelet starts; without ``volumes`` nobody here claims any. ``mpi`` are the words that go before the commands of
    these of its containers (see ``podjobs.pod_annotations.mpi_flags``). ``offer`` are its devices. ``cgroup`` is its
    own, where the user may make some (see ``sandbox.cgroups``).
    """

    cluster: ClusterSpec
    index: int
    name: str
    scratch: Path
    allocation: Allocation
    joined: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    pod: PodReference | None = None
    images: tuple[str, ...] = ()
    volumes: bool = True
    mpi: Mpi | None = None
    offer: DeviceOffer = field(default_factory=DeviceOffer)
    cgroup: Path | None = None

    @property
    def address(self) -> str:
        return str(self.cluster.ranges.node(self.index))

    @property
    def is_head(self) -> bool:
        return self.index == HEAD

    @property
    def has_ranks(self) -> bool:
        """Whether its containers may start ranks. These are processes of the host: not for pods of others."""
        return self.pod is not None and self.cluster.restriction is None

    @property
    def has_native_sockets(self) -> bool:
        """Whether its pods' TCP connections are the host's own (see ``network.native``). Not for pods of others."""
        return self.cluster.native_sockets and self.cluster.restriction is None and not support.missing()

    def binary(self, name: str) -> str:
        return self.cluster.binaries[name]

    def secret(self, name: str) -> str:
        return str(self.cluster.secrets / name)
