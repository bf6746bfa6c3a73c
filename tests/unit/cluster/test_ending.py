"""How a cluster's directory is removed: with none of its files open, whatever else fails."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from pinnace.cluster import cluster as module
from pinnace.cluster.cluster import Cluster
from pinnace.cluster.cluster_job import Place
from pinnace.cluster.directory import Directory, all_clusters
from pinnace.errors import UsageError


@pytest.fixture
def binaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """As much of the components as a cluster's directory needs."""
    (tmp_path / "pause").write_bytes(b"a binary")
    found = {"pause": str(tmp_path / "pause")}
    monkeypatch.setattr(module, "verified_binaries", lambda: found)
    return found


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster that was not started, and one of whose images does not exist."""
    monkeypatch.setenv("PINNACE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", "")
    images = [tmp_path / "absent.tar"]
    return Cluster("mine", listen="", interface="", ports="", place=Place.LOCAL, images=images)


@pytest.fixture
def open_then(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of a cluster's directory that this process has open when it is removed: NFS would keep them."""
    found: list[str] = []
    remove = Directory.remove

    def look_and_remove(directory: Directory) -> None:
        assert (directory.path / "timeline" / "commands").is_dir(), "nothing was recorded"
        for entry in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                found.extend([str(entry.readlink())] if entry.readlink().is_relative_to(directory.path) else [])
        remove(directory)

    monkeypatch.setattr(Directory, "remove", look_and_remove)
    return found


def test_a_cluster_that_ends_has_none_of_its_files_open(
    cluster: Cluster, binaries: dict[str, str], open_then: list[str]
) -> None:
    cluster.directory.create(binaries)
    cluster.down()
    assert (open_then, all_clusters()) == ([], [])


@pytest.mark.usefixtures("binaries")
def test_a_start_that_fails_has_none_of_them_open(cluster: Cluster, open_then: list[str]) -> None:
    with pytest.raises(Exception, match=r"absent\.tar"):
        cluster.start()
    assert (open_then, all_clusters()) == ([], [])


def test_what_is_done_before_the_removal_does_not_prevent_it(cluster: Cluster, binaries: dict[str, str]) -> None:
    cluster.directory.create(binaries)

    def fail() -> None:
        raise PermissionError("no timeline here")

    cluster.before_removal = fail
    with pytest.raises(PermissionError, match="no timeline here"):
        cluster.down()
    assert all_clusters() == []


@pytest.mark.usefixtures("binaries")
def test_an_unknown_access_is_refused_before_anything_is_made(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PINNACE_ACCESS", "magic")
    with pytest.raises(UsageError, match="PINNACE_ACCESS cannot be 'magic'") as raised:
        cluster.start()
    assert "auto, direct, slurm" in raised.value.hint
    assert all_clusters() == []
