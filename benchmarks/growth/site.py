"""The beds on which clusters grow."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.growth.processes import Process, has_address, look
from pinnace.bench.growth.kwok import CONFIGURATION, KWOK, kwok_argv
from pinnace.bench.growth.load import LoadSample
from pinnace.cli.output import Progress
from pinnace.components.fetch import fetch
from pinnace.components.manifest import architecture, manifest
from pinnace.components.store import ComponentStore, ComponentStores, Origin, user_root
from pinnace.spec.records import NodeRecord, NodeServices, indices
from testbed import Bed
from testbed.images import build_image
from testbed.plan import Plan
from testbed.software import install
from testbed.state import Directories

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Site", "running_site"]

PROJECT = Path(__file__).parents[2]
STATE = Directories(state=Path(os.environ.get("TESTBED_BENCH_STATE", "/var/lib/testbed-bench")))
USER = "alice"
PREFIX = Path("/opt/pinnace")  # of pinnace on the bed
CLUSTER = f"/home/{USER}/.local/share/pinnace/clusters/default"
IMAGE = "busybox"
LINKS = "links"  # the service of a node that has them
COMMAND_LIMIT = 1200.0  # seconds


class Site:
    """A bed, and at most one cluster on it."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.home = bed.directories.home / USER

    def up(self, nodes: int, *options: str) -> float:
        """Start a cluster. The seconds until all nodes were ready."""
        begun = time.monotonic()
        self.bed.run(["pinnace", "up", "-N", str(nodes), "-t", "60", *options], timeout=COMMAND_LIMIT)
        return time.monotonic() - begun

    def down(self) -> float:
        """End it. The seconds until it had ended."""
        begun = time.monotonic()
        self.bed.run(["pinnace", "down"], timeout=COMMAND_LIMIT)
        return time.monotonic() - begun

    def measure(self, nodes: int, pods: int, *options: str) -> LoadSample:
        """Bring the cluster to a size, by a client on the login node (see ``pinnace.bench.growth.load``)."""
        client = ["-m", "pinnace.bench.growth.load", f"{CLUSTER}/kubeconfig", str(nodes), str(pods), *options]
        done = self.bed.run([str(PREFIX / "bin" / "python"), *client], timeout=COMMAND_LIMIT)
        return LoadSample.from_json(json.loads(done.stdout))

    def processes(self) -> list[Process]:
        """Those of the user: of the cluster, and none of this bed's own."""
        return look(self.home.stat().st_uid)

    def links(self) -> list[Process]:
        """The processes that have the links, of the head first."""
        nodes = self.home / Path(CLUSTER).relative_to(f"/home/{USER}") / "nodes"
        processes = self.processes()
        found = []
        for index in indices(nodes):
            record, report = NodeRecord.read(nodes / f"{index}.json"), NodeServices.read(nodes, index)
            pids = {service.pid for service in report.services if service.name == LINKS} if report else set()
            found += [
                process
                for process in processes
                if process.host_pid in pids and record and has_address(process, record.address)
            ]
        return found

    @contextlib.contextmanager
    def simulator(self) -> Iterator[None]:
        """Run kwok on the login node."""
        shutil.copy(CONFIGURATION, self.home / CONFIGURATION.name)
        (self.home / CONFIGURATION.name).chmod(0o644)
        stored = ComponentStore(user_root(), architecture()).directory(manifest()[KWOK])
        inside = PREFIX / "share" / "pinnace" / stored.relative_to(user_root().parent) / KWOK
        argv = kwok_argv(str(inside), f"{CLUSTER}/kubeconfig", f"/home/{USER}/{CONFIGURATION.name}")
        with (self.home / "kwok.log").open("wb") as log:
            process = self.bed.popen(argv, stdout=log, stderr=subprocess.STDOUT)
            try:
                yield
            finally:
                process.terminate()
                process.wait(30)


@contextlib.contextmanager
def running_site(hosts: int, *, simulator: bool) -> Iterator[Site]:
    """A bed with pinnace on it. Nothing of it is left afterwards."""
    if simulator:
        store = ComponentStore(user_root(), architecture())
        fetch([manifest()[KWOK]], stores=ComponentStores(store), target=store, wanted=Origin.BUILD, reporter=Progress())
    bed = Bed.up(Plan(hosts=hosts, fast=True), STATE)
    try:
        install(bed, PROJECT, share=user_root().parent)
        site = Site(bed)
        shutil.copy(build_image(IMAGE), site.home / f"{IMAGE}.tar")
        yield site
    finally:
        bed.down()
