"""Images that outlive their cluster: whatever happens to a node, the next one finds a whole directory or none."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from pinnace.errors import UsageError
from pinnace.images import cache
from pinnace.sandbox import scratch
from unit.images.bolts import DELETED, database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FITS = ["1", "a boot", "containerd", "ids"]
IMAGE = f"{cache.SNAPSHOTS}/1/fs/usr/bin"
TAKE = """
import sys
from pathlib import Path
from pinnace.images import cache
lease = cache.take(Path(sys.argv[1]), sys.argv[2:])
print(lease.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    path = tmp_path / "pinnace-cache-1"
    assert cache.prepare(path, "")
    return path


@pytest.fixture
def nodes() -> Iterator[list[subprocess.Popen[str]]]:
    """Other processes: a lock does not keep out the one who holds it."""
    running: list[subprocess.Popen[str]] = []
    yield running
    for process in running:
        process.kill()
        process.communicate(timeout=30)


def start_node(nodes: list[subprocess.Popen[str]], pool: Path, fits: list[str] = FITS) -> Path:
    argv = [sys.executable, "-c", TAKE, str(pool), *fits]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    nodes.append(process)
    assert process.stdout
    return pool / os.path.basename(process.stdout.readline().strip())  # noqa: PTH119


def fill(lease: cache.CacheLease, *files: str) -> None:
    """What containerd leaves there."""
    for name in (f"{IMAGE}/sh", cache.DATABASE, "io.containerd.grpc.v1.cri/pod", *files):
        path = lease.containerd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(database() if name == cache.DATABASE else b"content")


def closed(pool: Path, *, fits: list[str] = FITS, at: float | None = None) -> Path:
    """A directory that was left in order, by a node that has ended."""
    code = f"""
import sys
from pathlib import Path
sys.path[:0] = {sys.path!r}
from unit.images.test_cache import fill
from pinnace.images import cache
lease = cache.take(Path({str(pool)!r}), {fits!r})
fill(lease)
cache.close(lease)
print(lease.path.name)
"""
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60).stdout
    path = pool / output.strip()
    if at is not None:
        data = json.loads((path / cache.CLOSED_FILE).read_text())
        (path / cache.CLOSED_FILE).write_text(json.dumps(data | {"time": at}))
    return path


def test_what_one_node_leaves_in_order_the_next_one_takes(pool: Path) -> None:
    path = closed(pool)
    lease = cache.take(pool, FITS)
    assert lease.path == path
    assert (lease.containerd / IMAGE / "sh").exists()
    assert not (lease.containerd / "io.containerd.grpc.v1.cri").exists(), "what belonged to the cluster is gone"
    assert DELETED not in (lease.containerd / cache.DATABASE).read_bytes()
    cache.verify(lease.containerd, lease.parts)
    assert (lease.containerd / IMAGE / "sh").exists()
    cache.close(lease)
    assert cache.read(path)


def test_nodes_at_the_same_time_have_a_directory_each(pool: Path, nodes: list[subprocess.Popen[str]]) -> None:
    path = closed(pool)
    assert start_node(nodes, pool) == path
    other = start_node(nodes, pool)
    assert other != path
    cache.sweep(pool, FITS)
    assert cache.prune(pool) is False
    assert path.exists()
    assert other.exists()
    assert cache.take(pool, FITS).path not in {path, other}


def test_of_several_the_one_used_last_is_taken(pool: Path, nodes: list[subprocess.Popen[str]]) -> None:
    start_node(nodes, pool)
    first = closed(pool, at=time.time() - 60)
    start_node(nodes, pool)
    second = closed(pool, at=time.time() - 30)
    assert first != second
    assert start_node(nodes, pool) == second


def test_of_several_the_one_with_the_wanted_image_is_taken(pool: Path) -> None:
    first = closed(pool, at=time.time() - 60)
    with (first / scratch.LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = closed(pool, at=time.time() - 30)
    blob = first / cache.CONTAINERD / cache.BLOBS / "ab"
    blob.parent.mkdir(parents=True)
    blob.touch()
    lease = cache.take(pool, FITS, ["sha256:ab", "sha256:cd"])
    assert lease.path == first != second


def test_what_a_killed_node_left_is_never_taken_and_swept(pool: Path, nodes: list[subprocess.Popen[str]]) -> None:
    path = closed(pool)
    assert start_node(nodes, pool) == path
    nodes[0].send_signal(signal.SIGKILL)
    nodes[0].wait(30)
    assert cache.take(pool, FITS).path != path
    cache.sweep(pool, FITS)
    assert not path.exists()


def test_a_removal_that_was_cut_off_is_finished_by_the_next_sweep(pool: Path) -> None:
    path = closed(pool)
    (path / cache.CLOSED_FILE).unlink()  # goes first
    (path / scratch.LOCK).unlink()
    cache.sweep(pool, FITS)
    assert not path.exists()


@pytest.mark.parametrize("damage", [b"", b"{}", b"[]", b'{"fits": 1}'])
def test_a_description_that_cannot_be_read_is_none(pool: Path, damage: bytes) -> None:
    path = closed(pool)
    (path / cache.CLOSED_FILE).write_bytes(damage)
    assert cache.take(pool, FITS).path != path
    cache.sweep(pool, FITS)
    assert not path.exists()


def test_what_does_not_fit_or_is_too_old_goes(pool: Path) -> None:
    other = closed(pool, fits=["1", "another boot"])
    old = closed(pool, at=time.time() - cache.MAX_AGE - 1)
    fresh = closed(pool, fits=["third"])
    assert len({other, old, fresh}) == 3
    cache.sweep(pool, ["third"])
    assert [path.exists() for path in (other, old, fresh)] == [False, False, True]


@pytest.mark.parametrize("lost", [f"{IMAGE}/sh", cache.DATABASE])
def test_what_somebody_cleaned_up_in_is_not_used(pool: Path, lost: str) -> None:
    """As sites do with old files in /tmp, one by one."""
    path = closed(pool)
    (path / "containerd" / lost).unlink()
    lease = cache.take(pool, FITS)
    assert lease.path == path
    cache.verify(lease.containerd, lease.parts)
    assert not list(lease.containerd.iterdir())


def test_what_somebody_cleaned_up_in_while_it_was_used_is_dropped(pool: Path) -> None:
    closed(pool)
    lease = cache.take(pool, FITS)
    fill(lease, f"{cache.SNAPSHOTS}/2/fs/new")
    (lease.containerd / IMAGE / "sh").unlink()
    cache.close(lease)
    assert not lease.path.exists()


def test_a_database_that_is_not_understood_is_dropped(pool: Path) -> None:
    lease = cache.take(pool, FITS)
    fill(lease)
    (lease.containerd / cache.DATABASE).write_bytes(b"something else")
    cache.close(lease)
    assert not lease.path.exists()


def test_what_takes_too_much_room_goes_the_oldest_first(
    pool: Path, nodes: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, kept = closed(pool, fits=["old"], at=time.time() - 9), closed(pool, fits=["kept"], at=time.time() - 5)
    used = start_node(nodes, pool, ["used"])
    size = cache.size(pool)
    system = os.statvfs(pool)
    monkeypatch.setattr(cache, "MIN_FREE", 0)
    monkeypatch.setattr(cache, "MAX_SHARE", (size - 1) / (system.f_blocks * system.f_frsize))
    cache.trim(pool)
    assert [path.exists() for path in (old, kept, used)] == [False, True, True]
    monkeypatch.setattr(cache, "MIN_FREE", 1 << 60)
    lease = cache.take(pool, FITS)
    fill(lease)
    cache.close(lease)
    assert [path.exists() for path in (kept, lease.path, used)] == [False, False, True]


def test_prune_removes_all_that_is_free(pool: Path) -> None:
    closed(pool)
    assert cache.prune(pool)
    assert not pool.exists()


def test_a_pool_that_is_not_ours_alone_is_not_used(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(victim)
    assert not cache.prepare(tmp_path / "link", "")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    assert not cache.prepare(tmp_path / "open", "")
    (tmp_path / "file").touch()
    assert not cache.prepare(tmp_path / "file", "")
    assert not cache.prepare(tmp_path / "nowhere" / "pool", "")
    tmp_path.chmod(0o777)
    assert not cache.prepare(tmp_path / "exchangeable", "")
    tmp_path.chmod(0o1777)
    assert cache.prepare(tmp_path / "exchangeable", "")


def test_memory_is_no_place_for_it(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    mountinfo = f"1 2 {os.major(device)}:{os.minor(device)} / /tmp rw shared:1 - %s none rw\n"
    assert not cache.prepare(tmp_path / "pool", mountinfo % "tmpfs")
    assert cache.prepare(tmp_path / "pool", mountinfo % "ext4")


def test_where_it_is(tmp_path: Path) -> None:
    mine = {"PINNACE_SCRATCH": str(tmp_path)}
    assert cache.place(mine, 7) == tmp_path / "pinnace-cache-7"
    assert cache.place({"SLURM_TMPDIR": "/scratch/job-1"}, 7) is None, "that goes with the job"
    assert str(cache.place({"SLURM_TMPDIR": "/scratch/job-1", cache.VARIABLE: "/disk"}, 7)) == "/disk/pinnace-cache-7"
    for word in cache.OFF:
        assert cache.place(mine | {cache.VARIABLE: word}, 7) is None
    with pytest.raises(UsageError, match="relative"):
        cache.place(mine | {cache.VARIABLE: "relative/path"}, 7)
