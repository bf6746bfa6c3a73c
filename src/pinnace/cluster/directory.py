"""The directory of a cluster: all its state, on the shared file system, for its user alone.

$PINNACE_HOME/clusters/<name>/
    cluster.json   what all nodes have to know (see spec.cluster)
    owner.json     the process that has created it
    job.json       what runs it: the Slurm job, or a process (see job_record)
    secrets/       keys, certificates, kubeconfigs
    images/        the sandbox image, and the names of those that every node gets when it starts
    nodes/         a file per node, written by its agent
    logs/          a directory per node
    timeline/      when each step happened (see pinnace.timeline)
    kubeconfig     for the user
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from dataclasses import asdict
from ipaddress import IPv4Network
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pinnace import ownership
from pinnace.cluster.job_record import ClusterJobRecord
from pinnace.components.manifest import architecture, manifest, required
from pinnace.components.store import ComponentStores, explain_no_space, site_root, user_root
from pinnace.controlplane import pki
from pinnace.controlplane.objects import common_objects
from pinnace.controlplane.seed import make_seed
from pinnace.errors import ClusterError, UsageError
from pinnace.images.oci import one_binary_image
from pinnace.images.store import ImageStore
from pinnace.network.addresses import choose, parse, routes
from pinnace.network.listening import INTERFACE, PortRange
from pinnace.node.requirements import MIN_HOME_FREE
from pinnace.podjobs.settings import PodJobSettings
from pinnace.removal import remove_tree
from pinnace.spec import (
    HEAD,
    SANDBOX_IMAGE,
    ClusterSpec,
    NodeRecord,
    NodeServices,
    NodeState,
    read_json,
    write_json,
)
from pinnace.spec.records import NodeConnections, indices

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pinnace.images.store import StoredImage
    from pinnace.network.addresses import Ranges
    from pinnace.spec import Provisioning, Restriction

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
STANDARD_INPUT = "standard input"
OWNER = "owner.json"
SUBDIRECTORIES = ("secrets", "images", "nodes", "logs", "pods", "timeline")


def random_name(user: str) -> str:
    """For a cluster whose user has not thought of one."""
    plain = re.sub(r"[^a-z0-9]+", "-", user.lower()).strip("-")[:30].strip("-")
    return f"{plain or 'cluster'}-{secrets.token_hex(3)}"


def home() -> Path:
    """Where everything of the user is. Nobody else can change it: all of it runs, or says what runs, as the user."""
    place = user_root().parent
    ownership.require(place, "the directory of pinnace", "set PINNACE_HOME to another directory")
    return place


def clusters_root() -> Path:
    return home() / "clusters"


def image_store() -> ImageStore:
    """The user's images, for all clusters of the user."""
    return ImageStore(home() / "images")


def load_image(path: Path, name: str | None = None) -> list[StoredImage]:
    """Take the images of a file or directory into the user's store. Clusters that run see them at once."""
    store = image_store()
    with explain_no_space(store.root.parent, str(path)):
        return store.load(path, name)


def load_images_from(stream: IO[bytes], name: str | None = None) -> list[StoredImage]:
    """The same from standard input."""
    store = image_store()
    with explain_no_space(store.root.parent, STANDARD_INPUT):
        return store.load_stream(stream, name, called=STANDARD_INPUT)


class Directory:
    """One cluster's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name

    @staticmethod
    def named(name: str) -> Directory:
        if not NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} cannot be the name of a cluster",
                hint="Use small letters, digits and dashes, at most 40, with a letter or digit at both ends.",
            )
        return Directory(clusters_root() / name)

    @staticmethod
    def existing(name: str) -> Directory:
        directory = Directory.named(name)
        if directory.path.is_symlink():
            raise ClusterError(
                f"{directory.path} is a symbolic link, and no cluster of pinnace's",
                hint="Remove it, if it is not wanted.",
            )
        if not directory.path.is_dir():
            known = ", ".join(other.name for other in all_clusters()) or "none"
            raise ClusterError(f"there is no cluster {name!r}", hint=f"Your clusters: {known}.")
        ownership.require(directory.path, f"the directory of the cluster {name}", "remove it")
        return directory

    def create(
        self,
        binaries: dict[str, str],
        *,
        ranges: Ranges | None = None,
        binds: dict[str, str] | None = None,
        publish: Iterable[int] = (),
        listen: str = "",
        interface: str = "",
        ports: str = "",
        bridge: str | None = None,
        bridge_options: tuple[str, ...] = (),
        provisioning: Provisioning | None = None,
        restriction: Restriction | None = None,
        native_sockets: bool = True,
        gres: dict[str, str] | None = None,
        device_files: dict[str, list[str]] | None = None,
        local: bool = False,
        retain: bool = False,
    ) -> ClusterSpec:
        """Create the directory with everything that agents need. Fails if the name is taken."""
        ranges = ranges or find_ranges(None, 1)
        ownership.make_directories(self.path.parent)
        with explain_no_space(self.path.parent, f"the cluster {self.name}"):
            require_free_space(self.path.parent)
            try:
                self.path.mkdir(mode=0o700)
            except FileExistsError:
                raise ClusterError(
                    f"you have a cluster called {self.name!r} already",
                    hint=f"See `pinnace list`; end it with `pinnace down {self.name}`, or choose another --name.",
                ) from None
            try:
                owner = ClusterJobRecord.of_process(os.getpid(), nodes=1, local=local, retain=retain)
                write_json(self.path / OWNER, asdict(owner))
                return self._fill(
                    ClusterSpec(
                        name=self.name,
                        directory=self.path,
                        ranges=ranges,
                        binaries=binaries,
                        seed=str(seed_directory() or ""),
                        images=str(image_store().root),
                        binds=binds or {},
                        publish=tuple(publish),
                        listen=listen,
                        interface=interface,
                        ports=ports,
                        provisioning=provisioning,
                        made=time.time(),
                        bridge=bridge,
                        bridge_options=bridge_options,
                        restriction=restriction,
                        native_sockets=native_sockets,
                        gres=gres or {},
                        device_files=device_files or {},
                    )
                )
            except BaseException:
                self.remove()
                raise

    def _fill(self, spec: ClusterSpec) -> ClusterSpec:
        for part in SUBDIRECTORIES:
            (self.path / part).mkdir(mode=0o700)
        image_store().prepare()
        pki.write_secret(self.path / "secrets" / "link.key", secrets.token_bytes(32))
        pki.create_control_plane(self.path / "secrets", spec.ranges, spec.domain)
        pause = one_binary_image(Path(spec.binaries["pause"]), SANDBOX_IMAGE, architecture())
        (self.path / "images" / "pause.tar").write_bytes(pause)
        write_json(self.path / "cluster.json", spec.dump())
        return spec

    def add_images(self, files: Iterable[Path]) -> None:
        """Load these, and let every node get them when it starts, not when the first pod wants them."""
        names = [str(stored.name) for file in files for stored in load_image(file)]
        write_json(self.path / "images" / "wanted.json", names)

    @property
    def spec(self) -> ClusterSpec:
        return ClusterSpec.load(self.path)

    @property
    def has_jobs(self) -> bool:
        """Whether jobs may have been submitted for this cluster, beside its own."""
        return self.is_complete and self.spec.provisioning is not None

    @property
    def capacity(self) -> str:
        """How many nodes and pods the cluster's addresses are enough for; empty before it was created."""
        return self.spec.ranges.capacity if self.is_complete else ""

    @property
    def is_complete(self) -> bool:
        """Whether agents could start."""
        return (self.path / "cluster.json").exists()

    def write_job_record(self, record: ClusterJobRecord) -> None:
        write_json(self.path / "job.json", asdict(record))

    @property
    def job_record(self) -> ClusterJobRecord | None:
        """What runs the cluster; None before it was launched."""
        return self._read_job_record("job.json")

    @property
    def owner(self) -> ClusterJobRecord | None:
        """The process that has created the cluster, and ends it unless it is a batch job."""
        return self._read_job_record(OWNER)

    def _read_job_record(self, name: str) -> ClusterJobRecord | None:
        data = read_json(self.path / name)
        # Earlier versions did not record `retain`: what they left is kept.
        return ClusterJobRecord(**({"retain": True} | data)) if data else None

    def node(self, index: int) -> NodeRecord | None:
        return NodeRecord.read(self.path / "nodes" / f"{index}.json")

    def records(self) -> list[NodeRecord]:
        """The records of all nodes, in the order of their indices."""
        return [record for index in indices(self.path / "nodes") if (record := self.node(index))]

    def reported(self, nodes: int) -> list[int]:
        """Which of the first nodes have a record, by one look for all of them."""
        try:
            return [index for index in indices(self.path / "nodes") if index < nodes]
        except FileNotFoundError:
            return []

    def connections(self, index: int) -> NodeConnections | None:
        return NodeConnections.read(self.path / "nodes", index)

    def services(self, index: int) -> NodeServices | None:
        return NodeServices.read(self.path / "nodes", index)

    @property
    def time_is_over(self) -> str:
        """The time limit for which the cluster ends by itself; empty if it does not."""
        about = read_json(self.path / "ending.json")
        return str(about["limit"]) if about else ""

    @property
    def head(self) -> NodeRecord | None:
        """The record of the node with the control plane; None before it has started."""
        return self.node(HEAD)

    @property
    def api_address(self) -> str | None:
        """Where the Kubernetes API is, once the head has said it."""
        head = self.head
        return f"https://{head.address}:{head.api}" if head and head.api else None

    def failure(self, index: int) -> tuple[str, str] | None:
        """Why a node failed, and a hint what to do about it; None if it has not."""
        record = self.node(index)
        return (record.failure, record.hint) if record and record.state is NodeState.FAILED else None

    def addresses(self, nodes: int) -> list[str]:
        """The addresses of the hosts of the first nodes, on the site's network."""
        return [record.address for index in self.reported(nodes) if (record := self.node(index))]

    @property
    def any_node_reported(self) -> bool:
        """Whether any node has written a record or a line of its log."""
        logs = (self.path / "logs").glob("agent-*.log")
        return any((self.path / "nodes").glob("*.json")) or any(log.stat().st_size for log in logs)

    def write_kubeconfig(self, server: str, user: dict[str, Any] | None = None) -> Path:
        """The user's own kubeconfig: the administrator's, with the address that the login node can reach.

        ``user`` is another way to get the administrator's certificate.
        """
        document = json.loads((self.path / "secrets" / "admin.kubeconfig").read_text())
        name = f"pinnace-{self.name}"
        document["clusters"][0]["cluster"] |= {"server": server, "tls-server-name": self.spec.api_name}
        if user:
            document["users"][0]["user"] = user
        for kind in ("clusters", "users", "contexts"):
            document[kind][0]["name"] = name
        document["contexts"][0]["context"] |= {"cluster": name, "user": name}
        document["current-context"] = name
        path = self.path / "kubeconfig"
        pki.write_secret(path, json.dumps(document, indent=1).encode())
        return path

    def remove(self) -> None:
        remove_tree(self.path)


def require_free_space(path: Path, least: int = MIN_HOME_FREE) -> None:
    """A cluster writes its logs here, and does not start where it cannot."""
    if shutil.disk_usage(path).free < least:
        raise OSError(errno.ENOSPC, f"less than {least >> 20} MiB are free")


def find_ranges(network: str | None, nodes: int, provisioning: Provisioning | None = None) -> Ranges:
    """The cluster's addresses: within the network that the user names, or where this host has no routes to.

    There are enough for ``nodes`` and for those that join later.
    """
    occupied = routes(Path("/proc/net/route").read_text())
    asked = nodes + (provisioning.elastic[1] if provisioning else 0)
    joining = joining_nodes(provisioning) if provisioning else 0
    try:
        if network:
            return parse(network, nodes=asked, joining=joining, occupied=occupied)
        return choose(occupied, nodes=asked, joining=joining)
    except ValueError as error:
        if network:
            raise UsageError(f"--network: {error}", hint="Without --network, pinnace finds one by itself.") from None
        raise ClusterError(
            str(error), hint="Give a network that your site does not use with --network, such as 10.128.0.0/16."
        ) from None


def joining_nodes(provisioning: Provisioning) -> int:
    """How many nodes for pods there may be at a time, with those that have ended and whose index is not free yet."""
    jobs = PodJobSettings.from_json(provisioning.settings).max_jobs
    return jobs + jobs // 4


def check_listening(listen: str, ports: str, interface: str = "") -> tuple[str, str]:
    """Where agents are to listen, if the user says so: a network of the hosts, and a range of ports."""
    if interface and listen:
        raise UsageError("--listen and --interface say the same in two ways", hint="Give one of them.")
    if interface and not INTERFACE.fullmatch(interface):
        raise UsageError(
            f"--interface: {interface!r} is no network device", hint="`ip -br addr` on a node shows them: ib0, eth1."
        )
    try:
        network = str(IPv4Network(listen)) if listen else ""
    except ValueError as error:
        raise UsageError(
            f"--listen: {error}", hint="Give the network that your hosts have addresses in, such as 10.1.0.0/16."
        ) from None
    try:
        return network, str(PortRange.parse(ports)) if ports else ""
    except ValueError as error:
        raise UsageError(f"--ports: {error}") from None


def seed_name() -> str:
    """The name of the seed (see ``controlplane.seed``) that fits the pinned versions and what we put into it."""
    parts = manifest()["kubernetes"].fingerprint + manifest()["etcd"].fingerprint + json.dumps(common_objects())
    return f"{manifest()['kubernetes'].version}-{hashlib.sha256(parts.encode()).hexdigest()[:12]}"


def seed_directory() -> Path | None:
    """Where the seed is: the user's own, or the site's. A cluster starts without one too, seconds later.

    A seed says who may do what in a cluster, so one that others could have changed is not used.
    """
    return next((path for path in seed_candidates() if path.is_dir() and not ownership.problem_below(path)), None)


def unsafe_seed() -> str:
    """Why a seed that is there is not used; empty if none is."""
    return next((found for path in seed_candidates() if path.is_dir() and (found := ownership.problem_below(path))), "")


def seed_candidates() -> list[Path]:
    """Where a seed may be, the user's own first."""
    return [root.parent / "seeds" / seed_name() for root in (user_root(), site_root())]


def ensure_seed(root: Path, binaries: dict[str, str]) -> bool:
    """Make the seed beside a store, unless there is one. Whether it was made."""
    if seed_directory():
        return False
    make_seed(binaries, root.parent / "seeds" / seed_name())
    return True


def all_clusters() -> list[Directory]:
    """The directories of the user's clusters, by name."""
    root = clusters_root()
    found = sorted(root.iterdir()) if root.is_dir() else []
    named = (path for path in found if not path.name.startswith("."))  # others are being removed (see cleanup)
    return [Directory(path) for path in named if path.is_dir() and not path.is_symlink()]


def verified_binaries() -> dict[str, str]:
    """The path of every binary that a cluster needs, from the store, verified."""
    stores = ComponentStores.default(architecture())
    found = (stores.binaries(component).items() for component in required())
    return {name: str(path) for binaries in found for name, path in binaries}
