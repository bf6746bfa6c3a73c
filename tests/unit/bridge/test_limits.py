"""Servers that answer slowly, endlessly or with secrets of others; rows that are forged."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from pinnace.bridge.crds import definitions
from pinnace.bridge.observer import Observer, Watched
from pinnace.bridge.slurmjob import INTENT, Job, output_path
from pinnace.bridge.tags import tag_in, tag_of_accounted, tag_of_line
from pinnace.kube import leader_election
from pinnace.slurm.jobs import AccountedJob, QueuedJob
from pinnace.slurm.states import JobState

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.timeout(60)
PRIVATE = "somebody else's secret"
UID = "00000000-0000-4000-8000-000000000001"
TAG = f"pinnace-bridge:{UID}/1"


def test_a_tag_is_where_we_put_it() -> None:
    assert tag_in(f"{TAG} pinnace-bridge:other/1") == TAG
    assert tag_in(f"x {TAG}") == tag_in(f"{TAG}x") == tag_in("pinnace-bridge:../1") == ""
    line = tag_of_line
    assert line(f"sbatch --parsable --comment={TAG} --job-name=x") == TAG
    assert line(f"/usr/bin/sbatch --parsable '--comment={TAG} mine' --job-name=x") == TAG
    assert line(f"sbatch --job-name=sbatch --parsable --comment={TAG}") == ""
    assert line(f"sbatch --parsable --job-name=x --comment={TAG}") == ""
    submitted = AccountedJob(id=7, state=JobState.FAILED, submit_line=f"sbatch --parsable --comment={TAG}")
    assert tag_of_accounted(submitted) == TAG
    assert tag_of_accounted(AccountedJob(id=7, state=JobState.FAILED, comment=f"{TAG} mine")) == TAG
    assert tag_of_accounted(AccountedJob(id=7, state=JobState.FAILED, comment=TAG, submit_line="sbatch x")) == ""


class Forger:
    """A Slurm in which somebody has written our tag on another job."""

    user, files = "alice", False

    def jobs(self, ours: Callable[[str], bool]) -> list[QueuedJob]:
        assert ours(TAG)
        mine = QueuedJob(id=7, comment=TAG, state=JobState.RUNNING)
        return [QueuedJob(id=8, comment=TAG, state=JobState.FAILED), mine]


def test_a_job_is_known_by_number_and_tag() -> None:
    told = threading.Event()
    observer = Observer(Forger(), lambda _: told.set())  # type: ignore[arg-type]
    observer.watch(Watched(key="a/b", tag=TAG, id=7, interval=1e15))
    assert told.wait(10)
    told.clear()
    observer.watch(Watched(key="a/c", tag=f"{TAG}1", id=8, interval=1e15))  # it asks again, whenever the first is due
    assert told.wait(10)
    assert [report.id for report in observer.reports(TAG) or ()] == [7]
    observer.forget(TAG)
    observer.forget(f"{TAG}1")


@pytest.mark.parametrize("note", ["", "x", "1", "1 2", "a b c", "1 -5 x", "9" * 5000 + " 0 x", "1 0\n x"])
def test_notes_that_are_none(note: str) -> None:
    metadata = {"creationTimestamp": "2026-01-01T00:00:00Z", "annotations": {INTENT: note}}
    assert Job({"metadata": metadata}).intent is None
    metadata["annotations"] = {INTENT: "1 0 name"}
    assert Job({"metadata": metadata}).intent == (1767225600, "name")
    for ahead, believed in ((100, True), (10_000, False)):
        since = int(time.time()) + ahead
        metadata["annotations"] = {INTENT: f"1 {since} name"}
        assert Job({"metadata": metadata}).intent == (since if believed else 1767225600, "name")


def test_a_width_in_a_file_name_is_slurms() -> None:
    for width in ("300000000", "9" * 5000, "²"):
        assert len(output_path(f"%{width}j", "/d", job=1, name="n", user="u")) < 100


def test_a_lease_can_hold_anything() -> None:
    for holder in (
        f"{leader_election.pid_namespace()}/x/1",
        f"{leader_election.pid_namespace()}//",
        f"{leader_election.pid_namespace()}/²/1",
        "/",
        "///",
    ):
        assert leader_election.is_dead(holder) is False


def test_a_process_can_have_any_name() -> None:
    code = "open('/proc/self/comm', 'wb').write(b'\\xff\\xfe)'); print('x', flush=True); input()"
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        assert leader_election.is_dead(leader_election.process_identity(process.pid)) is False
        process.kill()


def test_what_can_be_said_at_most() -> None:
    specs = [body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] for body in definitions()]
    fields = specs[0]["properties"] | specs[1]["properties"]
    for name in ("ttlSecondsAfterFinished", "updateIntervalSeconds", "updateinterval"):
        assert fields[name]["maximum"] < 1 << 31
