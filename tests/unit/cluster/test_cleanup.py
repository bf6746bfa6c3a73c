"""What a killed command has left is removed by the next one; whatever may live, or is to be retained, stays."""

from __future__ import annotations

import os
import subprocess
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import pytest
import yaml

from pinnace.cluster import cleanup
from pinnace.cluster.cleanup import remove_dead_clusters
from pinnace.cluster.directory import OWNER, Directory
from pinnace.cluster.job_record import ClusterJobRecord, boot_id, process_start
from pinnace.spec import NodeRecord, NodeState, write_json
from unit.cluster.fake_slurm import FakeSlurm

if TYPE_CHECKING:
    from pathlib import Path

LONG_AGO = 10_000.0
ELSEWHERE = {"host": "elsewhere"}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    slurm = FakeSlurm(tmp_path)
    monkeypatch.setenv("PATH", f"{slurm.bin}:{os.environ['PATH']}")
    return slurm


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Directory:
    """A cluster whose command and srun are gone, and of whose nodes nothing is known."""
    monkeypatch.setenv("PINNACE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    (tmp_path / "pause").write_bytes(b"a binary")
    directory = Directory.named("mine")
    directory.create({"pause": str(tmp_path / "pause")})
    own(directory, gone())
    directory.write_job_record(gone())
    return directory


def gone(**more: object) -> ClusterJobRecord:
    """The record of a process of this host that has ended."""
    with subprocess.Popen(["sleep", "60"]) as process:
        record = ClusterJobRecord.of_process(process.pid, nodes=1, local=False)
        process.kill()
    return replace(record, **more)  # type: ignore[arg-type]


def own(directory: Directory, owner: ClusterJobRecord) -> None:
    write_json(directory.path / OWNER, asdict(owner))


def head(directory: Directory, state: NodeState = NodeState.RUNNING) -> None:
    NodeRecord(name="n1", state=state, job=7).write(directory.path / "nodes" / "0.json")


def age(directory: Directory) -> None:
    """Let nothing have changed for hours."""
    for path in (directory.path, *directory.path.rglob("*")):
        times = path.stat().st_atime - LONG_AGO, path.stat().st_mtime - LONG_AGO
        os.utime(path, times)


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_cluster_that_ended_with_a_killed_command_is_removed(
    slurm: FakeSlurm, mine: Directory, *, forgotten: bool
) -> None:
    head(mine)
    slurm.show({"state": "CANCELLED", "forgotten": forgotten})
    assert remove_dead_clusters() == ["mine"]
    assert list(mine.path.parent.iterdir()) == []


def test_a_head_that_says_that_it_has_ended_is_enough(slurm: FakeSlurm, mine: Directory) -> None:
    """As in an allocation of the user's own, which goes on."""
    head(mine, NodeState.ENDED)
    slurm.show({"state": "RUNNING", "comment": "the user's"})
    assert remove_dead_clusters() == ["mine"]


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "SUSPENDED"])
@pytest.mark.parametrize("comment", ["pinnace:mine", "pinnace:mine:default/pod:1"])
def test_what_slurm_shows_as_alive_stays(slurm: FakeSlurm, mine: Directory, state: str, comment: str) -> None:
    head(mine, NodeState.ENDED)
    age(mine)
    slurm.show({"state": state, "comment": comment})
    assert remove_dead_clusters() == []
    assert mine.spec


def test_that_slurm_does_not_know_a_job_proves_nothing(slurm: FakeSlurm, mine: Directory) -> None:
    """A home may be that of several Slurms; and their numbers are the same."""
    head(mine)
    age(mine)
    slurm.show()
    assert remove_dead_clusters() == []
    slurm.show({"state": "COMPLETED", "comment": "another job"})
    assert remove_dead_clusters() == []


def test_nothing_is_decided_without_slurm(slurm: FakeSlurm, mine: Directory) -> None:
    head(mine, NodeState.ENDED)
    age(mine)
    slurm.stop()
    assert remove_dead_clusters() == []


@pytest.mark.parametrize("file", ["owner", "job"])
def test_what_is_to_be_retained_stays(slurm: FakeSlurm, mine: Directory, file: str) -> None:
    head(mine, NodeState.ENDED)
    age(mine)
    slurm.show()
    if file == "owner":
        own(mine, gone(retain=True))
    else:
        mine.write_job_record(gone(retain=True))
    assert remove_dead_clusters() == []


def test_what_an_earlier_version_has_left_stays(slurm: FakeSlurm, mine: Directory) -> None:
    head(mine, NodeState.ENDED)
    slurm.show()
    write_json(mine.path / "job.json", {"pid": 1, "host": os.uname().nodename, "began": "x", "nodes": 1})
    assert remove_dead_clusters() == []
    mine.write_job_record(gone())
    (mine.path / OWNER).unlink()
    assert remove_dead_clusters() == []


@pytest.mark.parametrize("process", ["command", "srun"])
def test_a_process_that_lives_keeps_its_cluster(slurm: FakeSlurm, mine: Directory, process: str) -> None:
    """A command whose cluster has failed still reads its logs."""
    head(mine, NodeState.FAILED)
    age(mine)
    slurm.show({"state": "FAILED"})
    alive = ClusterJobRecord.of_process(os.getpid(), nodes=1, local=False)
    if process == "command":
        own(mine, alive)
    else:
        mine.write_job_record(alive)
    assert remove_dead_clusters() == []


def test_a_batch_job_is_bound_to_no_process(slurm: FakeSlurm, mine: Directory) -> None:
    head(mine, NodeState.ENDED)
    mine.write_job_record(ClusterJobRecord(job=7))
    age(mine)
    slurm.show({"state": "COMPLETED"})
    assert remove_dead_clusters() == []


@pytest.mark.parametrize("changed", [ELSEWHERE, {"pid_namespace": "pid:[1]"}, {"began": "another-boot 1"}])
def test_where_a_process_cannot_be_seen_its_cluster_must_have_ended_for_a_while(
    slurm: FakeSlurm, mine: Directory, changed: dict[str, str]
) -> None:
    own(mine, gone(**changed))
    slurm.show({"state": "CANCELLED"})
    age(mine)
    assert remove_dead_clusters() == [], "it may not have started yet"
    head(mine)
    assert remove_dead_clusters() == [], "its command may just be looking why"
    age(mine)
    assert remove_dead_clusters() == ["mine"]


def test_what_has_not_started_is_given_time(slurm: FakeSlurm, mine: Directory) -> None:
    slurm.show()
    assert remove_dead_clusters() == []
    age(mine)
    assert remove_dead_clusters() == ["mine"]


def test_a_command_that_was_killed_while_it_created_a_cluster(slurm: FakeSlurm, mine: Directory) -> None:
    (mine.path / "job.json").unlink()
    slurm.show()
    assert remove_dead_clusters() == []
    age(mine)
    assert remove_dead_clusters() == ["mine"]


def test_a_local_cluster_goes_with_its_context_and_without_slurm(mine: Directory, tmp_path: Path) -> None:
    own(mine, gone(local=True))
    mine.write_job_record(gone(local=True))
    contexts: list[dict[str, object]] = [{"name": name, "context": {}} for name in ("pinnace-mine", "other")]
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump({"contexts": contexts, "current-context": "pinnace-mine"}))
    assert remove_dead_clusters() == ["mine"]
    left = yaml.safe_load((tmp_path / "kubeconfig").read_text())
    assert [entry["name"] for entry in left["contexts"]] == ["other"]


def test_a_cluster_that_took_the_name_meanwhile_is_put_back(mine: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = gone(local=True)
    own(mine, dead)
    mine.write_job_record(dead)

    def is_dead(directory: Directory, owner: ClusterJobRecord) -> bool:
        own(directory, ClusterJobRecord.of_process(os.getpid(), nodes=1, local=True))
        return owner == dead

    monkeypatch.setattr(cleanup, "is_dead", is_dead)
    assert remove_dead_clusters() == []
    assert mine.spec.name == "mine"


def test_a_removal_that_was_cut_short_is_finished(mine: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    left = mine.path.rename(mine.path.with_name(".removed-mine-0"))
    assert remove_dead_clusters() == []
    assert left.exists(), "another command may be at it"
    monkeypatch.setattr(cleanup, "QUIET_LIMIT", -1.0)
    remove_dead_clusters()
    assert not left.exists()


def test_when_a_process_began_names_the_boot() -> None:
    assert process_start(os.getpid()).split(" ")[0] == boot_id()
