"""Copies of a directory of the cache that a node uses: whole ones or none."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from pinnace.images import cache, cache_copying
from pinnace.removal import remove_tree
from unit.images.bolts import database
from unit.images.test_cache import FITS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DIGEST = f"sha256:{'ab' * 32}"
BLOB = f"{cache.BLOBS}/{DIGEST.removeprefix('sha256:')}"
SNAPSHOT = f"{cache.SNAPSHOTS}/1"


def in_another_process(work: Callable[[], None]) -> None:
    """What a node does that has ended: its locks are free again."""
    if (pid := os.fork()) == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.fixture
def used(tmp_path: Path) -> cache.CacheLease:
    """A directory with an image, that a node has taken."""
    pool = tmp_path / "pool"
    assert cache.prepare(pool, "")
    in_another_process(lambda: leave_image(cache.take(pool, FITS)))
    return cache.take(pool, FITS)


def leave_image(lease: cache.CacheLease) -> None:
    for name in (*cache.DATABASES, BLOB, f"{SNAPSHOT}/fs/bin/sh"):
        path = lease.containerd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(database() if name == cache.DATABASE else b"content")
    (lease.containerd / SNAPSHOT / "fs/bin/link").symlink_to("sh")
    (lease.containerd / SNAPSHOT / "fs/bin").chmod(0o2751)
    cache.close(lease)


def names_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def other(used: cache.CacheLease) -> cache.CacheLease:
    """That of a node which starts meanwhile."""
    return cache.take(used.path.parent, FITS, [DIGEST])


def test_a_copy_has_links_to_the_same_files_and_the_databases_of_before(used: cache.CacheLease) -> None:
    before = (used.containerd / cache.DATABASE).read_bytes()
    (used.containerd / cache.DATABASE).write_bytes(b"changed since")
    lease = other(used)
    assert lease.source == used.path
    assert not lease.parts
    assert cache_copying.copy(used.path, lease.containerd)
    for name in (BLOB, f"{SNAPSHOT}/fs/bin/sh"):
        assert (lease.containerd / name).samefile(used.containerd / name)
    assert (lease.containerd / SNAPSHOT / "fs/bin/link").readlink().name == "sh"
    assert (lease.containerd / SNAPSHOT / "fs/bin").stat().st_mode & 0o7777 == 0o2751
    assert (lease.containerd / cache.DATABASE).read_bytes() == before
    cache.close(lease)
    assert cache.read(lease.path)


def test_what_was_added_since_is_not_copied(used: cache.CacheLease) -> None:
    for name in (f"{cache.BLOBS}/new", f"{cache.SNAPSHOTS}/2/fs/new"):
        (used.containerd / name).parent.mkdir(parents=True, exist_ok=True)
        (used.containerd / name).touch()
    lease = other(used)
    assert cache_copying.copy(used.path, lease.containerd)
    assert names_in(lease.containerd / cache.BLOBS) == [DIGEST.removeprefix("sha256:")]
    assert names_in(lease.containerd / cache.SNAPSHOTS) == ["1"]


@pytest.mark.parametrize("gone", [BLOB, f"{SNAPSHOT}/fs/bin/sh", f"../{cache.ORIGIN}"])
def test_a_copy_that_would_not_be_whole_is_empty(used: cache.CacheLease, gone: str) -> None:
    lease = other(used)
    path = used.containerd / gone
    remove_tree(path) if path.is_dir() else path.unlink()
    assert not cache_copying.copy(used.path, lease.containerd)
    assert names_in(lease.containerd) == []


@pytest.mark.parametrize("change", [{"token": "another"}, {"token": None}, {"closed": {}}])
def test_a_directory_that_was_taken_anew_meanwhile_gives_no_copy(
    used: cache.CacheLease, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    """Though what another node, perhaps of another version, keeps there may have the same inode number."""
    lease = other(used)
    copyfile, file = shutil.copyfile, used.path / cache.ORIGIN / cache.CLOSED_FILE

    def taken_anew(source: Path, target: Path) -> None:
        about = json.loads(file.read_text()) | change
        file.write_text(json.dumps({name: value for name, value in about.items() if value is not None}))
        copyfile(source, target)

    monkeypatch.setattr(shutil, "copyfile", taken_anew)
    assert not cache_copying.copy(used.path, lease.containerd)
    assert names_in(lease.containerd) == []


def test_nothing_is_copied_that_nobody_wants(used: cache.CacheLease) -> None:
    pool = used.path.parent
    assert cache.take(pool, FITS).source is None
    assert cache.take(pool, FITS, ["sha256:cd"]).source is None
    assert cache.take(pool, [*FITS, "another"], [DIGEST]).source is None


def test_a_free_directory_with_the_image_is_better_than_a_copy(used: cache.CacheLease) -> None:
    def leave_copy() -> None:
        lease = other(used)
        assert cache_copying.copy(used.path, lease.containerd)
        cache.close(lease)

    in_another_process(leave_copy)
    again = other(used)
    assert again.source is None
    assert (again.containerd / BLOB).exists()
