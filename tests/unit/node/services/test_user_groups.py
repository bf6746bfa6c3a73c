"""Which containers keep the user's groups, by what containerd has put into their bundles."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from pinnace.node.services.user_groups import ANNOTATION, MAX_SIZE, keeps_groups, read_in, requested_groups

if TYPE_CHECKING:
    from pathlib import Path

USERS = "root:x:0:0::/root:/bin/sh\nbin:x:1:1\n# nobody\n\n+::\napp:x:1000:100::/:/bin/sh\ntoor:x:0:0::/:/bin/sh\n"
GROUPS = "root:x:0:\nbin:x:1:bin,root\nwheel:x:10:toor\nusers:x:100:\nvideo:x:44:app\nstaff:x:50\nodd:x:many:root\n"


def user(uid: int, gid: int, *groups: int) -> dict[str, Any]:
    return {"uid": uid, "gid": gid} | ({"additionalGids": [*groups]} if groups else {})


@pytest.mark.parametrize(
    ("about", "asked"),
    [
        (user(0, 0), set()),
        (user(0, 0, 0), set()),
        (user(0, 0, 0, 1, 10), set()),
        (user(0, 0, 0, 1, 10, 4567), {4567}),
        (user(0, 0, 0, 44), {44}),
        (user(1000, 100, 44, 100), set()),
        (user(1000, 100, 10, 44, 100), {10}),
        (user(1000, 1000, 1000), set()),
        (user(4711, 0, 0), set()),
        (user(4711, 0, 0, 1234), {1234}),
    ],
)
def test_what_neither_the_image_gives_nor_the_primary_group_is_was_asked_for(
    about: dict[str, Any], asked: set[int]
) -> None:
    assert requested_groups(about, USERS, GROUPS) == asked


def test_an_image_without_users_gives_no_groups() -> None:
    assert requested_groups(user(0, 0, 0, 10), "", "") == {10}
    assert requested_groups(user(0, 0, 0), "", GROUPS) == set()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "rootfs/etc").mkdir(parents=True)
    return tmp_path / "rootfs"


def container(about: dict[str, Any], kind: str = "container") -> dict[str, Any]:
    return {"annotations": {"io.kubernetes.cri.container-type": kind}, "process": {"user": about}}


def test_containers_of_pods_without_groups_of_their_own_keep_the_users(root: Path) -> None:
    (root / "etc/passwd").write_text(USERS)
    (root / "etc/group").write_text(GROUPS)
    assert keeps_groups(container(user(1000, 100, 44, 100)), root)
    assert not keeps_groups(container(user(1000, 100, 44, 100, 2000)), root)
    assert not keeps_groups(container(user(0, 0, 0), kind="sandbox"), root)
    for word, kept in (("false", False), ("False", False), ("true", True)):
        config = container(user(1000, 100, 44, 100))
        config["annotations"][ANNOTATION] = word
        assert keeps_groups(config, root) is kept


def test_files_of_an_image_are_looked_for_in_it_and_never_waited_for(root: Path, tmp_path: Path) -> None:
    (tmp_path / "group").write_text("outside")
    (root / "group").write_text("inside")
    (root / "etc/group").symlink_to("/group")
    assert read_in(root, "/etc/group") == "inside"
    os.mkfifo(root / "etc/passwd")
    assert read_in(root, "/etc/passwd") == ""
    assert read_in(root, "/etc") == ""
    assert read_in(root, "/etc/none") == ""
    (root / "etc/loop").symlink_to("loop")
    assert read_in(root, "/etc/loop") == ""
    (root / "etc/large").write_bytes(b"\xff" * (MAX_SIZE + 1))
    assert len(read_in(root, "/etc/large")) == MAX_SIZE
