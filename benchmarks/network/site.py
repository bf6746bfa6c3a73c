"""The bed on which the network is measured: bare hosts and pods, with the same servers and clients on both."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.network.measurements import PYTHON_PORT, RR_PORT, Client, NetworkPath
from benchmarks.network.objects import (
    CLIENT_HOST,
    DIRECTORY,
    HOSTS,
    IMAGES,
    PYTHON,
    RR,
    SERVERS,
    USER,
    Addresses,
    addresses,
    objects,
)
from pinnace.components.store import user_root
from testbed import Bed
from testbed.images import build_image
from testbed.images.recipes import SOURCES
from testbed.plan import Plan
from testbed.software import install
from testbed.state import Directories
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Site", "compile_rr", "running_site"]

PROJECT = Path(__file__).parents[2]
STATE = Directories(state=Path(os.environ.get("TESTBED_BENCH_STATE", "/var/lib/testbed-bench")))
CLUSTER = ".local/share/pinnace/clusters/default"
COMMAND_LIMIT, READY_LIMIT = 120.0, 60.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Site:
    """Hosts and pods with servers on them."""

    bed: Bed
    kubectl: Sequence[str]
    addresses: Addresses

    def run(
        self,
        path: NetworkPath,
        argv: Sequence[str],
        *,
        client: Client = Client.RR,
        check: bool = True,
        limit: float = COMMAND_LIMIT,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the client's host, or in the client pod of a path, in the container of a client."""
        if path is NetworkPath.BARE:
            return self.bed.run(argv, on=CLIENT_HOST, check=check, timeout=limit)
        execute = [*self.kubectl, "exec", f"client-{path}", "-c", client, "--"]
        return self.bed.run([*execute, *argv], check=check, timeout=limit)

    def answers(self) -> bool:
        """Whether all servers answer, over TCP and UDP."""
        return all(
            self.run(path, [RR, mode, address, str(port), "10"], check=False).returncode == 0
            for (path, _), address in self.addresses.items()
            for mode in ("tcp", "udp")
            for port in (RR_PORT, PYTHON_PORT)
        )


@contextlib.contextmanager
def running_site() -> Iterator[Site]:
    """A bed, a cluster on two of its three hosts, and servers everywhere. Nothing of it is left afterwards."""
    bed = Bed.up(Plan(hosts=len(HOSTS), fast=True, own_processors=True), STATE)
    try:
        install(bed, PROJECT, share=user_root().parent)
        put_files(bed.directories.home / USER)
        with contextlib.ExitStack() as stack:
            for host in HOSTS:
                for _, argv in SERVERS.values():
                    start_server(bed, host, argv, stack)
            site = start_pods(bed)
            wait_until("answers of all servers", site.answers, limit=READY_LIMIT)
            yield site
    finally:
        bed.down()


def compile_rr(target: Path) -> None:
    """Our client and server for requests and responses: static, so that it runs on hosts and in any image."""
    flags = ["-O2", "-static", "-s", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *flags, "-o", str(target), str(SOURCES / "rr.c")], check=True, timeout=COMMAND_LIMIT)


def put_files(home: Path) -> None:
    """The images, the programs and the objects, into the home directory that all hosts and pods share."""
    for image in sorted(set(IMAGES.values())):
        shutil.copy(build_image(image), home / f"{image}.tar")
    directory = home / Path(DIRECTORY).name
    directory.mkdir()
    compile_rr(directory / "rr")
    shutil.copy(Path(__file__).with_name("ordinary.py"), directory / Path(PYTHON).name)
    (directory / "objects.json").write_text(json.dumps(objects()))


def start_server(bed: Bed, host: str, argv: Sequence[str], stack: contextlib.ExitStack) -> None:
    process = bed.popen(argv, on=host, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.enter_context(process)
    stack.callback(process.terminate)


def start_pods(bed: Bed) -> Site:
    up = ["pinnace", "up", "-N", "2", "-w", ",".join(HOSTS[:2]), "--mem", "4G"]
    up += [f"--image={image}.tar" for image in sorted(set(IMAGES.values()))]
    bed.run(up, timeout=COMMAND_LIMIT)
    spec = json.loads((bed.directories.home / USER / CLUSTER / "cluster.json").read_text())
    kubectl = [spec["binaries"]["kubectl"], f"--kubeconfig=/home/{USER}/{CLUSTER}/kubeconfig"]
    bed.run([*kubectl, "apply", "-f", f"{DIRECTORY}/objects.json"])
    wait = ["wait", "--for=condition=Ready", "pods", "--all", f"--timeout={READY_LIMIT:.0f}s"]
    bed.run([*kubectl, *wait], timeout=COMMAND_LIMIT)
    found = json.loads(bed.run([*kubectl, "get", "pods,services", "-o", "json"]).stdout)["items"]
    return Site(bed=bed, kubectl=kubectl, addresses=addresses(bed.plan, found))
