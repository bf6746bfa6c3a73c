"""Whether other users can change what is at a path: the one place where that is decided.

What we execute, start a cluster from, or write secrets to must be ours or root's, and so must every directory and every
symbolic link on the way there: who can write to a directory can exchange all that is in it. In a directory with the
sticky bit, such as /tmp, everybody may make files, but nobody can exchange those of others.

``PINNACE_TRUST`` names users, and groups as ``group:NAME``, whose files are as good as one's own: somebody who installs
software for the site, or the members of a project.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.errors import UnsafePathError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

VARIABLE = "PINNACE_TRUST"
MOST_LINKS = 40  # as many as the kernel follows
WHOLE_MAP = ["0", "0", "4294967295"]


def problem(path: Path) -> str:
    """What lets other users change a path: the first such thing on the way there; nothing if it is safe.

    What does not exist cannot be changed.
    """
    here, left, links = "/", list(reversed(path.absolute().parts[1:])), 0
    users = _trusted_users()
    if found := _problem_of(here, os.lstat(here), users):
        return found
    while left:
        part = left.pop()
        if part == "..":
            here = str(Path(here).parent)
            continue
        there = os.path.join(here, part)  # noqa: PTH118 - a Path would cost more than the system call
        try:
            about = os.lstat(there)
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except PermissionError:
            return f"{there} cannot be looked at"
        if found := _problem_of(there, about, users):
            return found
        if not stat.S_ISLNK(about.st_mode):
            here = there
            continue
        links += 1
        if links > MOST_LINKS:
            return f"{path} leads in circles"
        target = Path(os.readlink(there))  # noqa: PTH115 - the same
        here = "/" if target.is_absolute() else here
        left += [part for part in reversed(target.parts) if part != "/"]
    return ""


def problem_below(path: Path) -> str:
    """The same for a directory with all that is in it. There shall be directories and plain files alone."""
    if found := problem(path):
        return found
    users = _trusted_users()
    for entry in path.rglob("*"):
        about = entry.lstat()
        if not (stat.S_ISDIR(about.st_mode) or stat.S_ISREG(about.st_mode)):
            return f"{entry} is neither a directory nor a file"
        if found := _problem_of(str(entry), about, users):
            return found
    return ""


def require(path: Path, what: str, instead: str) -> None:
    """Raise unless a path is safe. ``instead`` says how to choose another."""
    if found := problem(path):
        raise UnsafePathError(
            f"{what} ({path}) is not safe from other users: {found}",
            hint=f"Let it be yours alone (`chown`, `chmod go-w`), or {instead}. If you trust those users as yourself, "
            f"name them in {VARIABLE}, as in {VARIABLE}=easybuild,group:project.",
        )


def make_directories(path: Path, mode: int = 0o700) -> None:
    """Make a directory and those above it that are missing, none of them for others to write to, whatever the umask."""
    if path.is_dir():
        return
    if path.parent != path:
        make_directories(path.parent, mode)
    path.mkdir(mode=mode & ~0o022, exist_ok=True)


def _problem_of(place: str, about: os.stat_result, users: frozenset[int]) -> str:
    if about.st_uid not in users:
        return f"{place} belongs to {_name_of(about.st_uid)}"
    if stat.S_ISLNK(about.st_mode) or (stat.S_ISDIR(about.st_mode) and about.st_mode & stat.S_ISVTX):
        return ""
    if about.st_mode & stat.S_IWOTH:
        return f"{place} can be written by other users"
    if about.st_mode & stat.S_IWGRP and not _is_trusted_group(about.st_gid):
        return f"{place} can be written by other users (of the group {_group_name_of(about.st_gid)})"
    return ""


def _trusted_users() -> frozenset[int]:
    """Root, the user, and whom the user trusts. Inside a user namespace root may have no number of its own."""
    users = {0, os.geteuid(), *_named_users(_trusted_names())}
    if Path("/proc/self/uid_map").read_text().split() != WHOLE_MAP:
        users.add(int(Path("/proc/sys/kernel/overflowuid").read_text()))
    return frozenset(users)


def _trusted_names() -> list[str]:
    return [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]


def _named_users(names: Iterable[str]) -> list[int]:
    try:
        users = (name for name in names if not name.startswith("group:"))
        return [int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid for name in users]
    except KeyError as error:
        raise UsageError(f"{VARIABLE}: {error.args[0]}") from None


def _is_trusted_group(gid: int) -> bool:
    """Whether nobody is in a group but root, the user, and whom the user trusts.

    Where every user has a group of the same name, that group is as private as the user.
    """
    if gid == 0:
        return True
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    private = gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
    return private or f"group:{group.gr_name}" in _trusted_names()


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _group_name_of(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
