"""Upstream's simulator of nodes, ``sigs.k8s.io/kwok``, an optional component: found in the store, and run.

A node that it simulates is an object that it keeps ready, and a pod there runs when it has been bound. All else, the
API, etcd, the controllers and the scheduler, does the work that it would do for real nodes.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from pinnace.bench.allocation import end, start
from pinnace.bench.growth.objects import ANNOTATION, FAKE
from pinnace.cluster.kubeconfig import kubectl_environment
from pinnace.components.manifest import architecture, manifest
from pinnace.components.store import ComponentState, ComponentStores
from pinnace.errors import BenchError
from pinnace.validation import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CONFIGURATION", "KWOK", "Simulator", "find_kwok", "kwok_argv", "simulating"]

KWOK = "kwok"  # the component, and its binary
CONFIGURATION = Path(__file__).with_name("kwok.yaml")
SHOWN = 300  # characters of its last message
TAIL = 4096  # bytes of its log in which that is


def find_kwok() -> Path:
    """The program, from the store. BenchError if it was not fetched."""
    component, stores = manifest()[KWOK], ComponentStores.default(architecture())
    if stores.inspect(component).state is ComponentState.MISSING:
        raise BenchError(
            f"{component.label}, which simulates the nodes, is not in the store",
            hint=f"Run `pinnace fetch {KWOK}`, which builds it and needs Go; or take it from a bundle with "
            f"`pinnace fetch --from FILE {KWOK}`.",
        )
    return stores.binary(component, KWOK)


def kwok_argv(program: str, kubeconfig: str, configuration: str) -> list[str]:
    """Simulate the nodes with the annotation. The address of pods is not of the cluster: no packet ever goes there."""
    return [
        program,
        f"--kubeconfig={kubeconfig}",
        f"--config={configuration}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={ANNOTATION}={FAKE}",
        "--cidr=198.18.0.1/15",  # RFC 2544: for benchmarks
        "--node-ip=198.18.0.1",
        "--node-lease-duration-seconds=40",
        "--node-port=0",  # it does not listen
    ]


class Simulator:
    """kwok, while it runs."""

    def __init__(self, process: subprocess.Popen[str], log: IO[bytes]) -> None:
        self._process, self._log = process, log

    def check(self) -> None:
        """Raise if it has ended."""
        code = self._process.poll()
        if code is not None:
            raise BenchError(f"kwok has ended with exit code {code}: {self._last_message() or 'it said nothing'}")

    def _last_message(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - TAIL))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return printable(lines[-1], SHOWN) if lines else ""


@contextlib.contextmanager
def simulating(program: Path, kubeconfig: Path) -> Iterator[Simulator]:
    """Run kwok for a cluster, for as long as the context lasts; it ends with this process in any case."""
    # A configuration of the user's own in ~/.kwok would be read too.
    environment = kubectl_environment(kubeconfig) | {"KWOK_WORKDIR": str(kubeconfig.parent)}
    argv = kwok_argv(str(program), str(kubeconfig), str(CONFIGURATION))
    with tempfile.TemporaryFile() as log:
        process = start(argv, stdout=subprocess.DEVNULL, stderr=log, environment=environment)
        try:
            yield Simulator(process, log)
        finally:
            end(process)
