from __future__ import annotations

import os
import stat
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pinnace.cluster.directory import Directory, all_clusters, random_name, seed_directory, seed_name, unsafe_seed
from pinnace.cluster.job_record import ClusterJobRecord
from pinnace.errors import ClusterError, UnsafePathError, UsageError
from pinnace.spec import ClusterSpec

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
    assert not directory.job_record
    directory.write_job_record(ClusterJobRecord(job=7, nodes=2))
    assert directory.job_record == ClusterJobRecord(job=7, nodes=2)


def test_a_link_is_no_cluster(binaries: dict[str, str], tmp_path: Path) -> None:
    """Whoever ends a cluster removes its directory, and volumes beside it."""
    Directory.named("mine").create(binaries)
    elsewhere = Directory.existing("mine").path.rename(tmp_path / "elsewhere")
    (tmp_path / "home" / "clusters" / "mine").symlink_to(elsewhere)
    with pytest.raises(ClusterError, match="is a symbolic link"):
        Directory.existing("mine")
    assert all_clusters() == []


@pytest.mark.parametrize("place", ["home", "home/clusters", "home/clusters/mine"])
def test_what_others_can_change_is_not_used(binaries: dict[str, str], tmp_path: Path, place: str) -> None:
    directory = Directory.named("mine")
    directory.create(binaries)
    (tmp_path / place).chmod(0o777)
    with pytest.raises(UnsafePathError, match="can be written by other users"):
        Directory.existing("mine")
    with pytest.raises(UnsafePathError, match="can be written by other users"):
        ClusterSpec.load(directory.path)


@pytest.mark.parametrize("umask", [0o000, 0o002])
def test_everything_is_closed_to_others_whatever_the_umask(
    binaries: dict[str, str], tmp_path: Path, umask: int
) -> None:
    before = os.umask(umask)
    try:
        Directory.named("mine").create(binaries)
    finally:
        os.umask(before)
    for place in ("home", "home/clusters", "home/clusters/mine", "home/clusters/mine/secrets", "home/images"):
        assert stat.S_IMODE((tmp_path / place).stat().st_mode) == 0o700, place


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_seed_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINNACE_HOME", str(tmp_path / "home"))
    seed = tmp_path / "home" / "seeds" / seed_name() / "member"
    seed.mkdir(parents=True)
    (seed / "db").write_bytes(b"")
    assert seed_directory() == seed.parent
    os.chown(seed / "db", 12345, 12345)
    assert seed_directory() != seed.parent
    assert "belongs to" in unsafe_seed()


def test_a_process_is_known_by_its_beginning_not_by_its_number_alone() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        run = ClusterJobRecord.of_process(process.pid, nodes=1, local=True)
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
