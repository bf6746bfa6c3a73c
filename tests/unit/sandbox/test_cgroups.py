"""A delegated cgroup v2: on directories that look like one, since no machine has to have it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pinnace.sandbox import cgroups, scratch

UID = 1000
MOUNTS = """\
24 1 8:1 / / rw - ext4 /dev/sda1 rw
30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate
"""
HYBRID = """\
31 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
32 30 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
IN_CONTAINER = "30 24 0:26 /outer/box /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


@pytest.mark.parametrize(
    ("cgroup", "mounts", "directory"),
    [
        ("0::/user.slice/a.scope\n", MOUNTS, "/sys/fs/cgroup/user.slice/a.scope"),
        ("9:memory:/x\n0::/a\n", HYBRID, "/sys/fs/cgroup/unified/a"),
        ("0::/outer/box/a\n", IN_CONTAINER, "/sys/fs/cgroup/a"),
        ("0::/elsewhere\n", IN_CONTAINER, None),
        ("0::/../outside\n", MOUNTS, None),
        ("9:memory:/x\n", HYBRID, None),
        ("0::/a\n", "", None),
    ],
)
def test_the_directory_of_a_cgroup(cgroup: str, mounts: str, directory: str | None) -> None:
    assert cgroups.cgroup_of(cgroup, mounts) == (Path(directory) if directory else None)


def test_nodes_of_one_cgroup_are_beside_each_other() -> None:
    assert cgroups.parent_of_nodes(Path("/a/b")) == Path("/a/b")
    assert cgroups.parent_of_nodes(Path("/a/b/pinnace")) == Path("/a/b")


def test_slurm_looks_for_processes_in_the_cgroups_of_its_tasks() -> None:
    step = Path("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/user")
    assert cgroups.is_of_slurm(step / "task_0")
    assert not cgroups.is_of_slurm(step / "task_0" / "delegated")
    assert not cgroups.is_of_slurm(Path("/sys/fs/cgroup/user.slice/task_0"))


@pytest.fixture
def delegated(tmp_path: Path) -> Path:
    directory = tmp_path / "delegated"
    directory.mkdir()
    for name, text in (
        ("cgroup.procs", ""),
        ("cgroup.subtree_control", ""),
        ("cgroup.controllers", "cpu io memory pids"),
    ):
        (directory / name).write_text(text)
    return directory


def test_a_cgroup_that_we_may_write_to_will_do(delegated: Path) -> None:
    assert cgroups.refusal(delegated, UID) == ""
    assert cgroups.available(delegated) == ("cpu", "memory", "pids")


def test_why_a_cgroup_will_not_do(delegated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cgroups.refusal(None, UID) == "this host has no cgroup v2"
    assert cgroups.refusal(delegated / "gone", UID) == "this host has no cgroup v2"
    assert "root" in cgroups.refusal(delegated, 0)
    (delegated / "cgroup.controllers").write_text("cpuset pids")
    assert cgroups.refusal(delegated, UID) == "delegated without cpu, memory"
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path).name != "cgroup.subtree_control")
    assert cgroups.refusal(delegated, UID) == "none delegated"


def test_a_unit_of_the_users_systemd_has_to_be_delegated(delegated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attributes = {"user.invocation_id": b"0123"}

    def getxattr(_path: Path, name: str) -> bytes:
        if name not in attributes:
            raise OSError(errno.ENODATA, "no such attribute")
        return attributes[name]

    monkeypatch.setattr(os, "getxattr", getxattr)
    assert cgroups.refusal(delegated, UID) == "systemd keeps it to itself (Delegate=no)"
    attributes["user.delegate"] = b"1"
    assert cgroups.refusal(delegated, UID) == ""


def test_a_node_is_without_cgroups_where_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "mount_table", lambda: "")
    with pytest.raises(PermissionError, match="this host has no cgroup v2") as caught:
        cgroups.set_up(tmp_path)
    assert cgroups.describe(caught.value) == "this host has no cgroup v2"
    assert list(tmp_path.iterdir()) == []
    with cgroups.entering(None) as entry:
        pass
    assert (entry.entered, entry.refusal) == (False, "")


def test_what_is_refused_in_the_middle_leaves_nothing(
    delegated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that come back: the file of this directory keeps its text."""
    place = tmp_path / "pinnace-1000-ab"
    place.mkdir()
    (delegated / "cgroup.procs").write_text("1\n2\n")
    monkeypatch.setattr(cgroups, "cgroup_of", lambda *_: delegated)
    monkeypatch.setattr(os, "getuid", lambda: UID)
    with pytest.raises(OSError, match="cannot be moved"):
        cgroups.set_up(place)
    assert not (delegated / place.name).exists()
    assert (delegated / "cgroup.subtree_control").read_text() == ""


def test_a_node_that_cannot_enter_its_cgroup_is_made_without(tmp_path: Path) -> None:
    made = []
    with cgroups.entering(tmp_path / "gone") as entry:
        made.append("namespaces")
    assert made
    assert not entry.entered
    assert "cgroup.procs" in entry.refusal


def test_the_root_of_a_node_is_left_to_the_kubelet(delegated: Path) -> None:
    cgroups.leave_root(delegated)
    assert (delegated / "init" / "cgroup.procs").read_text() == "0"
    assert (delegated / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"


def test_cgroups_are_removed_with_the_nodes_directory(delegated: Path, tmp_path: Path) -> None:
    place = tmp_path / "pinnace-1000-ab"
    place.mkdir()
    (place / cgroups.RECORD).write_text(str(delegated))
    (delegated / "cgroup.subtree_control").write_text("cpu memory")
    (delegated / cgroups.AGENTS).mkdir()
    (delegated / place.name / "kubepods" / "burstable").mkdir(parents=True)
    other = delegated / "pinnace-1000-cd"
    other.mkdir()
    cgroups.remove(place)
    assert not (delegated / place.name).exists()
    assert (delegated / "cgroup.subtree_control").read_text() == "cpu memory"  # another node lives
    other.rmdir()
    scratch.remove(place)
    assert (delegated / "cgroup.subtree_control").read_text() == "-cpu -memory"
    assert not place.exists()


def test_a_directory_without_a_record_has_no_cgroups(tmp_path: Path) -> None:
    cgroups.remove(tmp_path)
    (tmp_path / cgroups.RECORD).write_text(str(tmp_path / "gone"))
    cgroups.remove(tmp_path)
