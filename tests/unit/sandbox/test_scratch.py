"""The one place where pinnace removes trees of files: it must never remove anything but its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pinnace.errors import UnsafePathError
from pinnace.sandbox import scratch
from pinnace.sandbox.mountinfo import filesystem_of_device
from support.trees import make_deep

UID = 12345


def test_a_directory_is_its_owners_alone_and_locked_while_its_node_lives(tmp_path: Path) -> None:
    path = scratch.make(tmp_path, UID)
    assert path.stat().st_mode & 0o777 == 0o700
    # Another process: a lock does not keep out the one who holds it.
    script = (
        f"from pathlib import Path; from pinnace.sandbox.scratch import sweep; sweep(Path({str(tmp_path)!r}), {UID})"
    )
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


def test_nobody_can_take_the_name_of_a_directory_while_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user sees the first name the moment it is there, and makes the one that it seems to become."""
    original = tempfile.mkdtemp

    def seen(prefix: str, dir: Path) -> str:  # noqa: A002 - as tempfile has it
        made = original(prefix=prefix, dir=dir)
        (tmp_path / Path(made).name.removeprefix(".")).touch()
        return made

    monkeypatch.setattr(tempfile, "mkdtemp", seen)
    assert scratch.make(tmp_path, UID).is_dir()
    assert not list(tmp_path.glob(".*"))


def test_a_node_whose_pods_made_deep_directories_leaves_nothing(tmp_path: Path) -> None:
    path = scratch.make(tmp_path, UID)
    make_deep(path)
    scratch.remove(path)
    assert not path.exists()


def test_a_place_in_which_others_can_exchange_directories_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(UnsafePathError, match="can be written by other users") as caught:
        scratch.make(tmp_path, UID)
    assert "PINNACE_SCRATCH" in caught.value.hint
    tmp_path.chmod(0o1777)
    assert scratch.make(tmp_path, UID).is_dir()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    dead = tmp_path / f"pinnace-{UID}-dead"
    dead.mkdir()
    (dead / scratch.LOCK).symlink_to(tmp_path / "elsewhere")
    scratch.sweep(tmp_path, UID)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", [b"\xff", b"\x0b", b"\x1c", b"\r", "é".encode()])
def test_a_mount_with_an_odd_name_is_seen_as_what_it_is(tmp_path: Path, name: bytes) -> None:
    """Any user may be able to mount something, and the table is the same for all."""
    mine = os.fsencode(tmp_path / "mine")
    table = os.fsdecode(b"1 2 8:1 / %s/%s rw - ext4 /dev/x rw\n2 2 8:1 / %s rw - ext4 /dev/x rw\n" % (mine, name, mine))
    assert len(scratch.mounts_below(tmp_path / "mine", table)) == 2
    assert filesystem_of_device(os.makedev(8, 1), table) == "ext4"


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


def test_scratch_is_where_programs_can_run(tmp_path: Path) -> None:
    """In a namespace with a /tmp that is mounted noexec, as at some sites."""
    script = f"""
mount -t tmpfs -o noexec,mode=1777 tmpfs {tmp_path}
exec {sys.executable} -c 'from pinnace.sandbox import scratch
print(scratch.base({{"SLURM_TMPDIR": "{tmp_path}"}}), scratch.base({{"PINNACE_SCRATCH": "{tmp_path}"}}))'
"""
    argv = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", script]
    said = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout
    assert said.split() == [tempfile.gettempdir(), str(tmp_path)]
    assert scratch.base({"SLURM_TMPDIR": str(tmp_path)}) == tmp_path
    assert scratch.base({}) == Path(tempfile.gettempdir())
