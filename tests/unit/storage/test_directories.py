"""Directories that are volumes: what is made, marked, removed, and never touched."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from pinnace.storage import directories as storage_directories
from pinnace.storage.directories import Directories, VolumeNameError, volume_name
from support.trees import make_deep

if TYPE_CHECKING:
    from pathlib import Path

UID = "8917389f-1ab7-497b-a936-5e0831d70938"


@pytest.fixture
def directories(tmp_path: Path) -> Directories:
    made = Directories(tmp_path / "volumes" / "cluster")
    made.prepare()
    return made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_names_tell_the_claim_and_fit_into_a_file_system() -> None:
    assert volume_name("default", "data-db-0", UID) == "default-data-db-0-8917389f1ab7"
    longest = volume_name("n" * 63, "c" * 253, UID)
    assert len(longest) <= 255
    assert longest.endswith("-8917389f1ab7")


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc", ".trash", "a\0b", "a\n", "ä"])
def test_what_is_not_a_name_is_refused(directories: Directories, name: str) -> None:
    with pytest.raises(VolumeNameError):
        directories.make(name, ephemeral=True)
    with pytest.raises(VolumeNameError):
        directories.discard(name)


@pytest.mark.parametrize("path", ["/etc", "{root}", "{root}/..", "{root}/a/b", "{root}/.trash", "{root}x/a", "a"])
def test_a_path_outside_the_root_is_no_volume(directories: Directories, path: str) -> None:
    with pytest.raises(VolumeNameError):
        directories.name_of(path.format(root=directories.root))


def test_the_root_is_closed_and_the_volume_open(directories: Directories) -> None:
    previous = os.umask(0o077)
    try:
        path = directories.make("default-a-1", ephemeral=True)
    finally:
        os.umask(previous)
    assert [mode(path) for path in (path, path.parent, path.parent.parent)] == [0o777, 0o700, 0o700]
    assert directories.name_of(str(path)) == "default-a-1"


def test_making_twice_keeps_what_is_there(directories: Directories) -> None:
    path = directories.make("default-a-1", ephemeral=True)
    (path / "file").write_text("content")
    assert directories.make("default-a-1", ephemeral=True) == path
    assert (path / "file").read_text() == "content"


def test_discarding_is_at_once_follows_no_link_and_can_be_repeated(directories: Directories, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("content")
    for _ in range(2):  # the second time while the first one is still in the trash
        path = directories.make("default-a-1", ephemeral=True)
        (path / "link").symlink_to(precious)
        directories.discard("default-a-1")
        assert not path.exists()
        directories.discard("default-a-1")
    assert not directories.ephemeral()
    directories.empty_trash()
    assert not any((directories.root / ".trash").iterdir())
    assert (precious / "file").read_text() == "content"


def test_the_end_takes_what_is_marked(directories: Directories) -> None:
    for name in ("default-a-1", "default-b-2", "default-c-3"):
        directories.make(name, ephemeral=name != "default-b-2")
    directories.mark("default-c-3", ephemeral=False)
    directories.discard("default-a-1")
    directories.make("default-d-4", ephemeral=True)
    assert directories.end()
    assert sorted(os.listdir(directories.root)) == ["default-b-2", "default-c-3"]  # noqa: PTH208


def test_the_end_of_nothing_leaves_nothing(directories: Directories) -> None:
    directories.make("default-a-1", ephemeral=True)
    assert directories.end()
    assert not directories.root.exists()
    assert directories.end()


def test_no_depth_of_directories_stops_the_trash_or_the_end(directories: Directories) -> None:
    for name in ("default-a-1", "default-b-2"):
        make_deep(directories.make(name, ephemeral=True))
    directories.discard("default-a-1")
    directories.empty_trash()
    assert not any((directories.root / ".trash").iterdir())
    assert directories.end()
    assert not directories.root.exists()


def test_what_cannot_be_removed_does_not_keep_the_rest(
    directories: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def fail(path: Path) -> None:
        tried.append(path.name.partition(".")[0])
        raise RecursionError

    for name in ("default-a-1", "default-b-2"):
        directories.make(name, ephemeral=True)
        directories.discard(name)
    monkeypatch.setattr(storage_directories, "remove_tree", fail)
    directories.empty_trash()
    assert sorted(tried) == ["default-a-1", "default-b-2"]
