"""What nodes say of themselves: ``nodes/N.json`` and ``nodes/N.services.json`` in the cluster's directory.

A node's record tells its state, and where the others reach it. A node that joins a running cluster takes its index by
creating the record: link(2) succeeds for exactly one. The record of a node that has ended or failed stays until nothing
of the node is left; whoever has seen to that removes it, and frees the index with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from pinnace.errors import ClusterError
from pinnace.spec.files import LIST_INTERVAL, LIST_SHARE, read_json, write_json

VERSION = 1  # of both files


class NodeState(StrEnum):
    """``JOINING``: it has an index, and no address yet. ``RUNNING``: its links listen."""

    JOINING = "joining"
    RUNNING = "running"
    FAILED = "failed"
    ENDED = "ended"


@dataclass(frozen=True, kw_only=True)
class NodeRecord:
    """``nodes/N.json``.

    ``links``, ``sockets``, ``api`` and ``published`` are ports at ``address``; the head alone has an API.
    """

    name: str
    state: NodeState
    job: int | None = None
    address: str = ""
    links: int = 0
    sockets: int = 0
    api: int | None = None
    published: tuple[int, ...] = ()
    failure: str = ""
    hint: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the node has ended, in order or not."""
        return self.state in {NodeState.FAILED, NodeState.ENDED}

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}

    @staticmethod
    def from_json(data: Any) -> NodeRecord:
        fields = versioned(data)
        try:
            return NodeRecord(**fields | {"state": NodeState(fields["state"]), "published": tuple(fields["published"])})
        except (KeyError, TypeError, ValueError) as error:
            raise unreadable() from error

    @staticmethod
    def read(path: Path) -> NodeRecord | None:
        """None while it is not there."""
        data = read_json(path)
        return None if data is None else NodeRecord.from_json(data)

    def write(self, path: Path) -> None:
        write_json(path, self.to_json())

    def claim_index(self, directory: Path, *, first: int, last: int) -> int:
        """Take an index that no node of a running cluster has, by creating its record: the lowest, unless another is
        faster.
        """
        descriptor, name = tempfile.mkstemp(prefix=".joining-", dir=directory)
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump(self.to_json(), file)
            taken = set(indices(directory))
            free = [index for index in range(first, last + 1) if index not in taken]
            others = free[1:]
            random.shuffle(others)  # many that join at once do not all try the same ones, one after the other
            for index in [*free[:1], *others]:
                with contextlib.suppress(FileExistsError):
                    os.link(name, directory / f"{index}.json")
                    return index
        finally:
            Path(name).unlink()
        raise ClusterError(
            f"the cluster has {last + 1} nodes already, and addresses for no more",
            hint="Wait until nodes leave, or start it with a larger --network, or with --elastic MIN:MAX.",
        )


class ServiceState(StrEnum):
    """What a process that is supervised does.

    ``WAITING``: for something that it needs. ``IDLE``: for a connection, which starts it. ``RESTARTING``: it ended, and
    starts again after its back-off.
    """

    WAITING = "waiting"
    IDLE = "idle"
    RUNNING = "running"
    RESTARTING = "restarting"
    DONE = "done"


@dataclass(frozen=True, kw_only=True)
class ServiceRecord:
    """A process that the agent or init supervises."""

    name: str
    state: ServiceState
    pid: int | None = None
    restarts: int = 0
    last_end: str = ""

    @staticmethod
    def from_json(data: dict[str, Any]) -> ServiceRecord:
        return ServiceRecord(**data | {"state": ServiceState(data["state"])})


@dataclass(frozen=True, kw_only=True)
class NodeServices:
    """``nodes/N.services.json``: all supervised processes of a node, as of ``time``."""

    name: str
    time: float
    services: tuple[ServiceRecord, ...]

    @staticmethod
    def path(nodes: Path, index: int) -> Path:
        return nodes / f"{index}.services.json"

    @classmethod
    def read(cls, nodes: Path, index: int) -> Self | None:
        data = read_json(cls.path(nodes, index))
        if data is None:
            return None
        fields = versioned(data)
        try:
            services = tuple(ServiceRecord.from_json(entry) for entry in fields["services"])
            return cls(**fields | {"services": services})
        except (KeyError, TypeError, ValueError) as error:
            raise unreadable() from error

    def write(self, nodes: Path, index: int) -> None:
        write_json(self.path(nodes, index), {"version": VERSION, **asdict(self)})


@dataclass(frozen=True, kw_only=True)
class NodeConnections:
    """``nodes/N.connections.json``: how many TCP connections of a node's pods took which path (see ``network.native``).

    ``spliced`` are connections from pods of other nodes to applications whose calls could not be caught.
    """

    name: str
    outside: int = 0
    pods: int = 0
    accepted: int = 0
    general: int = 0
    spliced: int = 0

    @staticmethod
    def path(nodes: Path, index: int) -> Path:
        return nodes / f"{index}.connections.json"

    @classmethod
    def read(cls, nodes: Path, index: int) -> Self | None:
        data = read_json(cls.path(nodes, index))
        try:
            return None if data is None else cls(**versioned(data))
        except TypeError as error:
            raise unreadable() from error

    def write(self, nodes: Path, index: int) -> None:
        write_json(self.path(nodes, index), {"version": VERSION, **asdict(self)})


def remove_record(nodes: Path, index: int) -> None:
    """Free an index."""
    for part in (NodeServices, NodeConnections):
        part.path(nodes, index).unlink(missing_ok=True)
    (nodes / f"{index}.json").unlink(missing_ok=True)


def indices(nodes: Path) -> list[int]:
    """The indices that have a record."""
    stems = (name.removesuffix(".json") for name in os.listdir(nodes) if name.endswith(".json"))  # noqa: PTH208 - for NFS
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def versioned(data: Any) -> dict[str, Any]:
    """The fields of a file of this version."""
    if not isinstance(data, dict) or data.get("version") != VERSION:
        raise unreadable()
    return {name: value for name, value in data.items() if name != "version"}


def unreadable() -> ClusterError:
    return ClusterError(
        "the cluster was started by another version of pinnace",
        hint="Use that version, or end the cluster with scancel and remove its directory.",
    )


class NodeAddresses:
    """Where all nodes listen. A pod may send to every address without a load on the site's file server."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._names: frozenset[str] = frozenset()
        self._due = 0.0  # when the directory may be listed again
        self._lock = threading.Lock()

    def links(self, index: int) -> tuple[str, int] | None:
        """The address and port of a node's links; None if it has not said, or has ended."""
        record = self._record(index)
        return (record.address, record.links) if record else None

    def sockets(self, index: int) -> tuple[str, int] | None:
        """The same of its native sockets; None, too, if it has none."""
        record = self._record(index)
        return (record.address, record.sockets) if record and record.sockets else None

    def _record(self, index: int) -> NodeRecord | None:
        if f"{index}.json" not in self._names and f"{index}.json" not in self._list():
            return None
        try:
            record = NodeRecord.read(self._directory / f"{index}.json")
        except (ClusterError, OSError):
            return None
        if record is None:
            with self._lock:
                self._names -= {f"{index}.json"}  # to be listed again before somebody looks for it
        return record if record and record.state is NodeState.RUNNING else None

    def _list(self) -> frozenset[str]:
        with self._lock:
            begun = time.monotonic()
            if begun >= self._due:
                self._names = frozenset(os.listdir(self._directory))  # noqa: PTH208 - a real opendir, for NFS
                done = time.monotonic()
                self._due = done + max(LIST_INTERVAL, LIST_SHARE * (done - begun))
            return self._names
