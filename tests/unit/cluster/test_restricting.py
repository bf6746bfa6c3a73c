"""Which directories of the host others may be given: not those by which they would become the user."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pinnace.cluster.restricting import checked_paths, restriction
from pinnace.errors import UsageError
from pinnace.spec import Restriction

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory beside the user's own ones. (That it is below /tmp is not what is looked at: /tmp is not in it.)"""
    monkeypatch.setenv("PINNACE_HOME", str(tmp_path / "user" / "pinnace"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("PINNACE_SCRATCH", str(tmp_path / "scratch"))
    for name in ("user/pinnace/clusters", "user/data", "scratch", "data/inner", "other"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path.resolve()


def test_clusters_of_ones_own_are_not_restricted() -> None:
    assert restriction(None, ()) is None
    with pytest.raises(UsageError, match="is for restricted clusters"):
        restriction(None, ["/data"])
    with pytest.raises(UsageError, match="cannot be 'strict'"):
        restriction("strict", ())


def test_directories_with_nothing_of_the_users_in_them(place: Path) -> None:
    (place / "link").symlink_to(place / "other")
    given: list[str | Path] = [place / "data", str(place / "user" / "data"), place / "link"]
    found = restriction("baseline", given)
    paths = (str(place / "data"), str(place / "user" / "data"), str(place / "other"))
    assert found == Restriction(level="baseline", host_paths=paths)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("user/pinnace", "secrets of your clusters"),
        ("user/pinnace/clusters", "it is in"),
        ("user", "it holds .*pinnace"),
        ("", "it holds"),
        ("scratch", "where the nodes keep their files"),
        ("missing", "no such directory"),
    ],
)
def test_directories_that_are_the_users_own(place: Path, name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        checked_paths([place / name])


@pytest.mark.parametrize("path", ["/", "/etc", "/proc/self", "/dev", "/var/lib", "/tmp", sys.prefix, "relative"])
def test_directories_of_the_system(place: Path, path: str) -> None:
    assert place
    with pytest.raises(UsageError):
        checked_paths([path])


def test_one_within_another(place: Path) -> None:
    """Who can write to the outer one puts a link to anything in place of the inner one."""
    with pytest.raises(UsageError, match="one within the other"):
        checked_paths([place / "data" / "inner", place / "data"])


def test_a_directory_that_others_can_exchange(place: Path) -> None:
    (place / "data").chmod(0o777)
    with pytest.raises(UsageError, match="others than you can change"):
        checked_paths([place / "data" / "inner"])
    (place / "data").chmod(0o1777)
    assert checked_paths([place / "data" / "inner"])
    if os.getuid() == 0:
        os.chown(place / "data", 4711, -1)
        with pytest.raises(UsageError, match="others than you can change"):
            checked_paths([place / "data" / "inner"])


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that everybody on this host can reach; pytest's own are private."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made).resolve()


def test_directories_that_pods_may_write_to_are_closed_to_the_hosts_other_users(public: Path) -> None:
    """Root in a pod may be the user on the host: a setuid file of it there would be for everybody."""
    found = restriction("restricted", [str(public)])
    assert found
    assert (found.read_only, found.writable) == ((str(public),), ())
    with pytest.raises(UsageError, match="setuid"):
        restriction("restricted", [f"{public}:rw"])
    public.chmod(0o700)
    found = restriction("restricted", [f"{public}:rw"])
    assert found
    assert (found.read_only, found.writable) == ((), (str(public),))


def test_two_directories_with_one_name(place: Path) -> None:
    for name in ("a-b", "a_b"):
        (place / name).mkdir()
    with pytest.raises(UsageError, match="the same name"):
        checked_paths([place / "a-b", place / "a_b"])
