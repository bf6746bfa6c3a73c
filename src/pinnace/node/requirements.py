"""What an agent demands of its host before it makes a node.

Apart from ``node.checks``, which loads far more: every pod that is a job waits for its agent to load.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.errors import NodeError
from pinnace.sandbox import scratch
from pinnace.sandbox.linux import inotify_init1
from pinnace.spec import CLOCK_SKEW, LIFE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pinnace.spec import ServiceRecord

MIN_HOME_FREE = 32 << 20  # bytes in $PINNACE_HOME: a cluster's logs and keys
ADMINISTRATORS = "Ask your site's administrators"
SET_CLOCK = f"{ADMINISTRATORS} to set that host's clock (NTP), or leave the host out with --exclude."
SCRATCH_HINT = "Set PINNACE_SCRATCH, or `scratch` in pinnace.toml, to a directory on the nodes' own disks."
INOTIFY_INSTANCES = 9  # inotify instances of a node: five of the kubelet's, three of containerd's, one of kube-proxy's
MAX_INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
WATCHERS = {"containerd", "kubelet", "kube-proxy"}
WATCHER_RESTARTS = 2  # of one of these, after which it is asked whether it got what it needs
START = 120.0  # seconds in which a node starts


def require_watches() -> None:
    """Raise if the kubelet and containerd would not get what they watch files with, of which a user has few on a host.

    containerd would start again and again.
    """
    taken = []
    try:
        for _ in range(INOTIFY_INSTANCES):
            taken += [inotify_init1(os.O_CLOEXEC)]
    except OSError as error:
        yours = f"yours ({_max_instances()} on a host) are nearly all taken"
        hint = "Have fewer nodes and other programs that watch files on that host at a time, or ask your site's"
        raise NodeError(
            f"a node needs {INOTIFY_INSTANCES} inotify instances, and {yours}",
            hint=f"{hint} administrators for a higher fs.inotify.max_user_instances.",
        ) from error
    finally:
        for descriptor in taken:
            os.close(descriptor)


def require_watches_while_starting(services: Iterable[ServiceRecord], age: float) -> None:
    """The same for a node that was begun so many seconds ago, and whose components do not stay up.

    Other nodes may have begun on this host in the same moment, and have taken what was there when it was looked for.
    """
    if age < START and any(found.name in WATCHERS and found.restarts >= WATCHER_RESTARTS for found in services):
        require_watches()


def _max_instances() -> str:
    try:
        return MAX_INSTANCES.read_text().strip()
    except OSError:
        return "some"


def require_executable(base: Path) -> None:
    """Raise if no program can be run in the host's scratch directory: a node would come up, and do half of its work."""
    if scratch.is_noexec(base):
        raise NodeError(noexec(base), hint=SCRATCH_HINT)


def noexec(base: Path) -> str:
    return f"{base} is mounted noexec, so pods could not run programs in their volumes"


def require_clock(made: float, now: float) -> None:
    """Raise if certificates that were made then are not valid by this host's clock."""
    if made - CLOCK_SKEW <= now <= made + LIFE:
        return
    said = f"{span(abs(now - made))} {'ahead' if now > made else 'behind'}"
    raise NodeError(f"its clock is {said}, by the clock of the host where the cluster was made", hint=SET_CLOCK)


def span(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
