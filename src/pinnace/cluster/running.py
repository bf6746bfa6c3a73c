"""Running a workload in a cluster that is up, or in one that is started for it and ended afterwards."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pinnace.cluster.collecting import Collector
from pinnace.cluster.reporting import SILENT
from pinnace.cluster.until import UntilWatcher
from pinnace.cluster.workload import Workload
from pinnace.errors import ClusterError
from pinnace.timeline.recorder import MarkEvent, StepName

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pinnace.cluster.cluster import Cluster
    from pinnace.cluster.manifest import Manifest
    from pinnace.cluster.reporting import StepReporter
    from pinnace.cluster.until import Until
    from pinnace.cluster.workload import AppliedObject, OnLine

# What is entered while a cluster ends. The command line ignores signals there, because they ask for just that.
Ending = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a workload ended: its exit code, 0 if it succeeded, and the objects of its manifest."""

    exit_code: int
    objects: tuple[AppliedObject, ...] = ()


class ManifestRun:
    """One manifest in one cluster: applied, followed until it ends, its logs collected if that is asked for."""

    def __init__(
        self,
        cluster: Cluster,
        manifest: Manifest,
        on_line: OnLine,
        *,
        until: Until | None = None,
        output_dir: Path | None = None,
        reporter: StepReporter = SILENT,
    ) -> None:
        self._cluster = cluster
        self._manifest = manifest
        self._on_line = on_line
        self._until = until
        self._collector = Collector(output_dir) if output_dir else None
        self._reporter = reporter
        self._workload: Workload | None = None
        self._said_anything = False

    def apply_early(self) -> None:
        """Apply the manifest while the cluster starts, so that its pods wait for nothing but nodes.

        If not all of it is possible yet, ``run`` applies it again.
        """
        with contextlib.suppress(ClusterError), self._cluster.timeline.step(StepName.APPLY):
            workload = Workload(self._cluster.kubectl_command)
            workload.apply(self._manifest)
            self._workload = workload

    def run(self) -> RunResult:
        """Apply the manifest, unless that is done, and follow it to its end."""
        with self._reporter.step(f"applied {self._manifest.source}"):
            workload = self._workload or Workload(self._cluster.kubectl_command)
            if not workload.objects:
                with self._cluster.timeline.step(StepName.APPLY):
                    workload.apply(self._manifest)
        check_alive = self._cluster.check_alive
        self._cluster.timeline.mark(StepName.WORKLOAD, MarkEvent.BEGIN)
        try:
            if self._until is None:
                code = workload.follow(self._line, check_alive)
            else:
                with UntilWatcher(self._until, workload, check_alive) as reached:
                    code = workload.follow(self._line, check_alive, reached)
        finally:
            self._cluster.timeline.mark(StepName.WORKLOAD, MarkEvent.END)
            if self._collector:
                self._collector.events(self._cluster.kubeconfig)
        return RunResult(exit_code=code, objects=tuple(workload.objects))

    def _line(self, container: str, text: str) -> None:
        try:
            self._on_line(container, text)
        finally:
            if not self._said_anything:  # two threads may be first at once, and both marks be right
                self._said_anything = True
                self._cluster.timeline.mark(StepName.FIRST_LINE, MarkEvent.READY)
            if self._collector:
                self._collector.line(container, text)


@contextlib.contextmanager
def ended_on_failure(cluster: Cluster, ending: Ending = contextlib.nullcontext) -> Iterator[None]:
    """End a cluster that was started if the rest of its start fails."""
    try:
        yield
    except BaseException:
        with ending(), contextlib.suppress(ClusterError):
            cluster.down()
        raise


def run_once(
    cluster: Cluster,
    work: Callable[[], RunResult],
    *,
    early: Callable[[], None] | None = None,
    limit: float | None = None,
    reporter: StepReporter = SILENT,
    ending: Ending = contextlib.nullcontext,
) -> RunResult:
    """Start a cluster, do the work, and end the cluster, whatever happens. ``early`` is done once the API answers.

    ``limit`` is that of the start, in seconds; a job may be pending for days.
    """
    cluster.start()  # undoes itself if it fails: a cluster of the same name is not ours to end
    begin = time.monotonic()
    try:
        with reporter.step("cluster is ready") as step:
            cluster.wait_for_api(step.say, limit)
            if early:
                early()
            cluster.wait_ready(step.say, None if limit is None else limit - (time.monotonic() - begin))
        return blame_time_limit(cluster, work)
    finally:
        with ending(), reporter.step("cluster has ended"):
            cluster.down()


def blame_time_limit(cluster: Cluster, work: Callable[[], RunResult]) -> RunResult:
    """Do the work. If it fails and the cluster's time is over, that is the reason, whatever the work says."""
    try:
        result = work()
    except ClusterError:
        cluster.check_time()
        raise
    if result.exit_code:
        cluster.check_time()
    return result
