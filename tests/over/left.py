"""What a cluster must not leave behind."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from testbed.waiting import wait_until

if TYPE_CHECKING:
    from over.conftest import User


def assert_nothing_left(user: User) -> None:
    """No job, process, namespace or file of the user on any compute host."""
    wait_until("the user's jobs to end", lambda: not user.run("squeue", "--me", "--noheader").stdout, limit=60)
    for host in ("n1", "n2", "n3"):
        wait_until("the user's processes to end", partial(no_process, user, host), limit=60)
        pattern = f"pinnace-{user.uid}-*"
        scratch = user.bed.run(["find", "/tmp", "-maxdepth", "1", "-name", pattern], user="root", on=host).stdout
        assert not scratch, f"{host}: {scratch}"


def no_process(user: User, host: str) -> bool:
    """Whether no process of the user runs there, nor of the users that only exist inside the user's clusters."""
    listing = user.bed.run(["ps", "-eo", "uid", "--no-headers"], user="root", on=host).stdout
    return not any(int(uid) in user.uids for uid in listing.split())
