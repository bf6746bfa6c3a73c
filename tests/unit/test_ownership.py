"""Who else can change what is at a path."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pinnace import ownership
from pinnace.errors import UnsafePathError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

STRANGER = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "above" / "directory" / "file"
    path.parent.mkdir(parents=True)
    path.touch(mode=0o644)
    return path


def test_what_is_ours_alone_is_safe_wherever_it_is(place: Path) -> None:
    assert ownership.problem(place) == ""
    assert ownership.problem(place.parent / ".." / "directory" / "file") == ""
    assert ownership.problem(place.parent / "missing" / "more") == ""


@pytest.mark.parametrize("up", [0, 1, 2])
@pytest.mark.parametrize("mode", [0o777, 0o757])
def test_what_others_may_write_to_is_not_safe_nor_what_is_below_it(place: Path, up: int, mode: int) -> None:
    [place, *place.parents][up].chmod(mode)
    assert "can be written by other users" in ownership.problem(place)


def test_a_directory_in_which_nobody_can_exchange_files_of_others_is_safe(place: Path) -> None:
    place.parent.chmod(0o1777)
    assert ownership.problem(place) == ""
    place.chmod(0o666)
    assert ownership.problem(place) != ""


@as_root
@pytest.mark.parametrize("up", [0, 1, 2])
def test_what_belongs_to_others_is_not_safe(place: Path, up: int) -> None:
    target = [place, *place.parents][up]
    os.chown(target, STRANGER, 0)
    assert ownership.problem(place) == f"{target} belongs to user {STRANGER}"


@as_root
def test_a_group_of_others_may_not_write(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(place.parent, 0, 50)
    place.parent.chmod(0o775)
    assert "of the group staff" in ownership.problem(place)
    monkeypatch.setenv(ownership.VARIABLE, "group:staff")
    assert ownership.problem(place) == ""


@as_root
def test_a_link_is_followed_and_is_not_safe_if_another_made_it(place: Path) -> None:
    shared = place.parent / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    link = shared / "link"
    link.symlink_to("../file")
    assert ownership.problem(link) == ""
    os.chown(link, STRANGER, 0, follow_symlinks=False)
    assert "belongs to" in ownership.problem(link)
    os.chown(link, 0, 0, follow_symlinks=False)
    os.chown(place, STRANGER, 0)
    assert "belongs to" in ownership.problem(link)


def test_links_that_lead_in_circles_are_not_safe(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "in circles" in ownership.problem(tmp_path / "a")


@as_root
def test_somebody_can_be_trusted_by_name(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(place, 1, 1)
    assert "belongs to daemon" in ownership.problem(place)
    monkeypatch.setenv(ownership.VARIABLE, "bin, daemon")
    assert ownership.problem(place) == ""
    monkeypatch.setenv(ownership.VARIABLE, "1")
    assert ownership.problem(place) == ""
    monkeypatch.setenv(ownership.VARIABLE, "no-such-user")
    with pytest.raises(UsageError, match="PINNACE_TRUST"):
        ownership.problem(place)


def test_a_tree_is_safe_if_all_of_it_is(place: Path) -> None:
    assert ownership.problem_below(place.parent.parent) == ""
    place.chmod(0o666)
    assert str(place) in ownership.problem_below(place.parent.parent)
    place.unlink()
    place.symlink_to("/etc/passwd")
    assert "neither" in ownership.problem_below(place.parent.parent)


def test_the_error_says_what_to_do(place: Path) -> None:
    place.parent.chmod(0o777)
    with pytest.raises(UnsafePathError, match=r"the thing .* is not safe from other users") as caught:
        ownership.require(place, "the thing", "set THING to another")
    assert "set THING to another" in caught.value.hint
    assert "chmod go-w" in caught.value.hint


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_directories_are_never_made_for_others_to_write_to(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        ownership.make_directories(tmp_path / "a" / "b")
        ownership.make_directories(tmp_path / "c" / "d", 0o777)
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert ownership.problem(tmp_path / "c" / "d") == ""
