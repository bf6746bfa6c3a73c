"""The one place where pinnace removes trees of files: it must never remove anything but its own."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pinnace.node import scratch

if TYPE_CHECKING:
    from pathlib import Path

UID = 12345


def test_a_directory_is_its_owners_alone_and_locked_while_its_node_lives(tmp_path: Path) -> None:
    path = scratch.make(tmp_path, UID)
    assert path.stat().st_mode & 0o777 == 0o700
    # Another process: a lock does not keep out the one who holds it.
    script = f"from pathlib import Path; from pinnace.node.scratch import sweep; sweep(Path({str(tmp_path)!r}), {UID})"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
    assert path.exists()


def test_what_a_dead_node_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    dead = tmp_path / f"pinnace-{UID}-dead"
    (dead / "deep" / "er").mkdir(parents=True)
    (dead / scratch.LOCK).touch()
    other = tmp_path / f"pinnace-{UID + 1}-other"
    other.mkdir()
    (other / scratch.LOCK).touch()
    precious = tmp_path / "precious"
    precious.mkdir()
    (tmp_path / f"pinnace-{UID}-link").symlink_to(precious)
    scratch.sweep(tmp_path, UID)
    assert not dead.exists()
    assert other.exists()
    assert precious.exists()


def test_mount_points_are_found_below_a_path_and_nowhere_else(tmp_path: Path) -> None:
    mountinfo = f"1 2 8:1 / {tmp_path}/a/b\\040c rw - ext4 /dev/x rw\n2 2 8:1 / {tmp_path}/ab rw - ext4 /dev/x rw\n"
    assert scratch.mounts_below(tmp_path / "a", mountinfo) == [f"{tmp_path}/a/b c"]


@pytest.mark.bed
def test_a_directory_with_something_mounted_in_it_is_left_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis").write_text("years of work")
    path = scratch.make(tmp_path, UID)
    (path / "root" / "home").mkdir(parents=True)
    subprocess.run(["mount", "--bind", home, path / "root" / "home"], check=True, timeout=10)
    try:
        scratch.remove(path)
        assert (home / "thesis").read_text() == "years of work"
    finally:
        subprocess.run(["umount", path / "root" / "home"], check=True, timeout=10)
    scratch.remove(path)
    assert not path.exists()
    assert (home / "thesis").exists()
