"""The files of /etc that make the users and the hosts of the bed: pure functions from the machine's to the bed's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed.plan import GROUPS, SYSTEM_USERS, USERS, Plan, User

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["by_nss", "group", "hosts", "nsswitch", "passwd", "profile", "resolv_conf", "shadow", "subids"]

SUBIDS_PER_USER = 65_536


def without(text: str, names: set[str], ids: set[str]) -> list[str]:
    """The lines of a passwd-like file that do not clash with the users of the bed."""
    lines = (line for line in text.splitlines() if line.count(":") >= 2)
    return [line for line in lines if line.split(":")[0] not in names and line.split(":")[2] not in ids]


def merge(text: str, ids: dict[str, int], lines: Iterable[str]) -> str:
    kept = without(text, set(ids), set(map(str, ids.values())))
    return "\n".join([*kept, *lines]) + "\n"


def passwd_line(user: User) -> str:
    return f"{user.name}:x:{user.uid}:{user.uid}::{user.home}:{user.shell}"


def passwd(machine: str) -> str:
    users = (*SYSTEM_USERS, *USERS)
    ids = {user.name: user.uid for user in users}
    return merge(machine, ids, (passwd_line(user) for user in users if not user.by_nss))


def by_nss() -> str:
    """The passwd file of those whom a directory service knows."""
    return "".join(f"{passwd_line(user)}\n" for user in USERS if user.by_nss)


def nsswitch(machine: str) -> str:
    """The machine's, where NSS asks libnss-extrausers after /etc/passwd."""
    lines = machine.splitlines()
    return "".join(f"{line} extrausers\n" if line.startswith("passwd:") else f"{line}\n" for line in lines)


def group(machine: str) -> str:
    """A group for each user, and those of several."""
    own = {user.name: user.uid for user in (*SYSTEM_USERS, *USERS)}
    ids = own | {group.name: group.gid for group in GROUPS}
    members = {group.name: ",".join(group.members) for group in GROUPS}
    return merge(machine, ids, (f"{name}:x:{gid}:{members.get(name, '')}" for name, gid in ids.items()))


def shadow() -> str:
    """Nobody has a password: one becomes a user of the bed with ``testbed run``."""
    return "".join(f"{name}:*:19000:0:99999:7:::\n" for name in ("root", *(u.name for u in (*SYSTEM_USERS, *USERS))))


def subids() -> str:
    """The same text for subuid and subgid."""
    names = {user: str(user.uid) if user.by_nss else user.name for user in USERS}
    return "".join(f"{names[u]}:{u.subids}:{SUBIDS_PER_USER}\n" for u in USERS if u.subids is not None)


def hosts(plan: Plan) -> str:
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    return "\n".join([*lines, *(f"{host.address} {host.name}" for host in plan.linked)]) + "\n"


def resolv_conf() -> str:
    """A resolver that refuses at once: names outside /etc/hosts do not exist in the bed."""
    return "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"


def profile() -> str:
    return 'PATH="/opt/pinnace/bin:$PATH"\n'
