"""Directories are removed whatever others have made in them, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pinnace.removal import remove_tree
from support.trees import make_deep

if TYPE_CHECKING:
    from collections.abc import Iterator

NOBODY = 65534


@pytest.fixture
def top(tmp_path: Path) -> Path:
    path = tmp_path / "top"
    path.mkdir()
    return path


def test_any_depth_is_removed(top: Path) -> None:
    make_deep(top)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    remove_tree(top)
    assert not top.exists()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_wide_tree_is_removed(top: Path) -> None:
    for number in range(200):
        (top / str(number % 20) / str(number)).mkdir(parents=True)
        (top / str(number % 20) / str(number) / "file").touch()
    os.mkfifo(top / "0" / "fifo")
    (top / os.fsdecode(b"\xff")).mkdir()
    remove_tree(top)
    assert not top.exists()


def test_links_are_not_followed(top: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("content")
    (top / "link").symlink_to(tmp_path / "precious")
    (tmp_path / "other").symlink_to(tmp_path / "precious")
    remove_tree(top)
    remove_tree(tmp_path / "other")
    remove_tree(tmp_path / "nothing")
    assert not top.exists()
    assert (tmp_path / "precious" / "file").read_text() == "content"


@pytest.fixture
def of_nobody() -> Iterator[Path]:
    """A directory of an ordinary user, as whom the test runs: root may enter everything."""
    before = os.geteuid()
    with tempfile.TemporaryDirectory() as place:
        if before == 0:
            os.chown(place, NOBODY, NOBODY)
            os.seteuid(NOBODY)
        try:
            yield Path(place)
        finally:
            os.seteuid(before)


@pytest.mark.parametrize("mode", [0o000, 0o400, 0o300, 0o500])
def test_what_cannot_be_removed_stays_and_keeps_nothing_else(of_nobody: Path, mode: int) -> None:
    for name in ("a", "b", "c"):
        (of_nobody / name / "in" / "er").mkdir(parents=True)
    (of_nobody / "b" / "in").chmod(mode)
    try:
        remove_tree(of_nobody)
        assert os.listdir(of_nobody) == ["b"]  # noqa: PTH208
    finally:
        (of_nobody / "b" / "in").chmod(0o700)


def test_a_directory_that_is_moved_meanwhile_leads_nowhere_else(
    top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "precious" / "inner").mkdir(parents=True)
    (tmp_path / "precious" / "file").touch()
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "b" / "file").touch()
    unlink, once = os.unlink, threading.Event()

    def move(name: str, *, dir_fd: int) -> None:
        unlink(name, dir_fd=dir_fd)
        if not once.is_set():
            once.set()
            (top / "a" / "b").rename(tmp_path / "precious" / "b")

    monkeypatch.setattr(os, "unlink", move)
    remove_tree(top)
    assert once.is_set()
    assert sorted(os.listdir(tmp_path / "precious")) == ["b", "file", "inner"]  # noqa: PTH208


MOUNTED = """
import sys
from pathlib import Path
from pinnace.sandbox.linux import mount
from pinnace.removal import remove_tree

top = Path(sys.argv[1])
mount("none", str(top / "a" / "mounted"), "tmpfs")
(top / "a" / "mounted" / "file").touch()
remove_tree(top)
print(*sorted(str(path.relative_to(top)) for path in top.rglob("*")))
"""


def test_other_file_systems_are_left_alone(top: Path) -> None:
    for name in ("a/mounted", "a/other", "b"):
        (top / name).mkdir(parents=True)
    argv = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", MOUNTED, str(top)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "a a/mounted a/mounted/file\n", done.stderr
