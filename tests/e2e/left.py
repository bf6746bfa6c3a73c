"""What a cluster must not leave behind."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING

from testbed.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.conftest import User


def has_job(user: User) -> bool:
    return bool(user.run("squeue", "--me", "--noheader").stdout)


def assert_nothing_left(user: User) -> None:
    """No job, process, namespace or file of the user on any compute host, but unpacked images for the next cluster."""
    wait_until("the user's jobs to end", lambda: not has_job(user), limit=60)
    for host in ("n1", "n2", "n3"):
        wait_until("the user's processes to end", partial(no_process, user, host), limit=60)
        places = [user.bed.directories.host(host) / name for name in ("tmp", "var-tmp")]
        left = [path for place in places for path in place.iterdir() if path.lstat().st_uid in user.uids]
        others = [path for path in left if path.name != f"pinnace-cache-{user.uid}"]
        assert others == [], (
            f"left on {host}: {[str(within) for path in others for within in (path, *path.rglob('*'))]}"
        )
        for path in cached(user, host):
            assert (path / "closed.json").exists(), f"{host}: {path} was not given back"


def remove_left(user: User) -> None:
    """What killed nodes have left. The user's next node on that host would do it; which host that is, nobody knows."""
    for host in ("n1", "n2", "n3"):
        nodes = (user.bed.directories.host(host) / "tmp").glob(f"pinnace-{user.uid}-*")
        for path in (*nodes, *(path for path in cached(user, host) if not (path / "closed.json").exists())):
            shutil.rmtree(path)


def cached(user: User, host: str) -> list[Path]:
    """The directories with unpacked images on a host."""
    return list((user.bed.directories.host(host) / "tmp" / f"pinnace-cache-{user.uid}").glob("*"))


def no_process(user: User, host: str) -> bool:
    """Whether no process of the user runs there, nor of the users that only exist inside the user's clusters."""
    listing = user.bed.run(["ps", "-eo", "uid", "--no-headers"], user="root", on=host).stdout
    return not any(int(uid) in user.uids for uid in listing.split())
