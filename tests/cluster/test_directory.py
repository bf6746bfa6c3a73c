from __future__ import annotations

import stat
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pinnace.cluster.directory import Directory, Run, all_clusters, random_name
from pinnace.errors import ClusterError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def binaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("PINNACE_HOME", str(tmp_path / "home"))
    (tmp_path / "pause").write_bytes(b"a binary")
    return {"pause": str(tmp_path / "pause")}


def test_a_cluster_is_made_found_and_removed(binaries: dict[str, str]) -> None:
    directory = Directory.named("mine")
    spec = directory.create(binaries)
    assert [cluster.name for cluster in all_clusters()] == ["mine"]
    assert Directory.existing("mine").spec == spec
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    directory.remove()
    assert all_clusters() == []


def test_what_runs_it_is_remembered(binaries: dict[str, str]) -> None:
    directory = Directory.named("mine")
    directory.create(binaries)
    assert not directory.run
    directory.write_run(Run(job=7, nodes=2))
    assert directory.run == Run(job=7, nodes=2)


def test_a_process_is_known_by_its_beginning_not_by_its_number_alone() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        run = Run.of_process(process.pid, nodes=1, local=True)
        assert run.alive
        assert not replace(run, began=f"{run.began}0").alive, "the number was given again"
        assert not replace(run, host="elsewhere").alive
        process.kill()
    assert not run.alive


@pytest.mark.parametrize("user", ["alice", "Jane.Doe", "_svc_", "x" * 64, "ünï", "..", ""])
def test_a_name_is_made_up_for_every_user(user: str) -> None:
    Directory.named(random_name(user))


def test_a_name_in_use_is_refused(binaries: dict[str, str]) -> None:
    Directory.named("mine").create(binaries)
    with pytest.raises(ClusterError, match="you have a cluster called 'mine' already") as caught:
        Directory.named("mine").create(binaries)
    assert "pinnace down mine" in caught.value.hint
    assert Directory.existing("mine").spec, "the first one is untouched"


def test_a_creation_that_fails_leaves_nothing(binaries: dict[str, str]) -> None:
    with pytest.raises(FileNotFoundError):
        Directory.named("mine").create(binaries | {"pause": "/nonexistent"})
    assert all_clusters() == []


@pytest.mark.parametrize("name", ["", "../up", "A", "a_b", "-a", "a-", "a" * 41, "a/b"])
def test_a_name_that_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name"):
        Directory.named(name)


@pytest.mark.usefixtures("binaries")
def test_an_unknown_cluster_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ClusterError, match="there is no cluster 'x'"):
        Directory.existing("x")
