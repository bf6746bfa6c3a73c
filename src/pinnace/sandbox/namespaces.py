"""The namespaces of a node, made by an ordinary user.

    agent ── monitor ── init
              │          PID 1 of the node: all its processes are below it, and end with it
              └─ root of the user namespace; waits for init, then removes the files of mapped users

The monitor stays in the host's mount namespace. There the node's directory has nothing but the node's own files; in the
node's namespace the user's home is mounted below it, and removing it there would remove the home.

If the agent ends, however it ends, the kernel sends SIGUSR2 to the monitor. It is not SIGTERM, because Slurm may send
SIGTERM to every process of a job that it ends, which must not end the monitor. If the monitor ends, the kernel kills
init, and with init every process of the node.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.errors import NodeError
from pinnace.sandbox.ids import MAX_IDS, subordinate_ranges
from pinnace.sandbox.linux import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    die_with_parent,
    unshare,
)

if TYPE_CHECKING:
    from collections.abc import Callable

NODE_NAMESPACES = CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS
AGENT_GONE = signal.SIGUSR2  # to the monitor: the agent has ended
SWEEP_TIMEOUT = 20.0  # seconds that the monitor waits for ``Cleanup.sweep`` at its end
USERNS_READY = b"u"
ONE_USER, MANY_USERS = b"1", b"m"
MONITOR_SIGNALS = {AGENT_GONE, signal.SIGCHLD}
IN_ORDER = 3  # exit code of an init that has left its files in a state that later nodes can use


@dataclass(frozen=True, kw_only=True)
class Cleanup:
    """Removal of files by the monitor, as root of the user namespace, in the host's mount namespace.

    ``sweep`` removes the files of dead nodes while this one runs. ``end`` removes this node's; its argument is whether
    the node ended in order.
    """

    sweep: Callable[[], None]
    end: Callable[[bool], None]


def map_ids(pid: int) -> bytes:
    """Map root of a new user namespace to us and, if we have subordinate IDs, the users 1 to 65536 to those.

    Returns ONE_USER or MANY_USERS, as the namespace's first process expects it.
    """
    uid, gid = os.getuid(), os.getgid()
    ranges = subordinate_ranges()
    if ranges is None:
        for file, content in (("setgroups", "deny"), ("gid_map", f"0 {gid} 1"), ("uid_map", f"0 {uid} 1")):
            Path(f"/proc/{pid}/{file}").write_text(content)
        return ONE_USER
    for tool, own, (begin, count) in (("newuidmap", uid, ranges[0]), ("newgidmap", gid, ranges[1])):
        argv = [tool, str(pid), "0", str(own), "1", "1", str(begin), str(min(count, MAX_IDS))]
        result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
        if result.returncode:
            raise NodeError(f"{tool}: {result.stderr.strip()}")
    return MANY_USERS


def start(
    init: Callable[[socket.socket], None], cleanup: Cleanup, *, drop_groups: bool = False
) -> tuple[int, socket.socket]:
    """Make the namespaces and run ``init`` as their first process. Returns the monitor's PID and a socket to init.

    ``init`` makes the mount and cgroup namespaces itself (see ``mounts.mount_node``), and reports over the socket why
    it fails. ``drop_groups`` drops the user's supplementary groups, which the kernel allows where there are subordinate
    IDs.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ready_ours, ready_theirs = socket.socketpair()
    monitor = os.fork()
    if monitor == 0:
        try:
            ours.close()
            ready_ours.close()
            code = _monitor(init, theirs, ready_theirs, cleanup, drop_groups=drop_groups)
        except BaseException:  # noqa: BLE001 - a forked process must not return into the caller
            traceback.print_exc()
            code = 1
        sys.stderr.flush()
        os._exit(code)
    theirs.close()
    ready_theirs.close()
    with ready_ours:
        if ready_ours.recv(1) != USERNS_READY:
            raise NodeError("this host does not allow user namespaces")
        ready_ours.send(map_ids(monitor))
    return monitor, ours


def as_root(work: Callable[[], bool]) -> bool:
    """Run ``work`` as root of a user namespace, which owns the files of pods' users. Whether it succeeded."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            ours.close()
            code = 0 if _become_root(theirs) and work() else 1
        finally:
            os._exit(code)
    theirs.close()
    try:
        with ours:
            if ours.recv(1) == USERNS_READY:
                ours.send(map_ids(child))
    except NodeError:
        return False
    finally:
        _, status = os.waitpid(child, 0)
    return status == 0


def _become_root(ready: socket.socket, *, drop_groups: bool = False) -> bool:
    """Enter a new user namespace, whose IDs the process at the other end of ``ready`` maps. Whether it has."""
    unshare(CLONE_NEWUSER)
    ready.send(USERNS_READY)
    users = ready.recv(1)
    if users not in {ONE_USER, MANY_USERS}:
        return False
    if users == MANY_USERS and drop_groups:
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    return True


def _monitor(
    init: Callable[[socket.socket], None],
    channel: socket.socket,
    ready: socket.socket,
    cleanup: Cleanup,
    *,
    drop_groups: bool,
) -> int:
    """Start init in its namespaces, wait for its end, and clean up. Returns the exit code."""
    if not _become_root(ready, drop_groups=drop_groups):
        return 1
    sweeper = os.fork()  # before the PID namespace is made: its processes die with init
    if sweeper == 0:
        die_with_parent(signal.SIGKILL)
        cleanup.sweep()
        os._exit(0)
    unshare(NODE_NAMESPACES)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, MONITOR_SIGNALS)
    agent = os.getppid()
    pid = os.fork()
    if pid == 0:
        die_with_parent(signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, MONITOR_SIGNALS)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        try:
            init(channel)
        except BaseException:  # noqa: BLE001 - see above
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    channel.close()
    die_with_parent(AGENT_GONE)
    if os.getppid() != agent:  # it ended before die_with_parent()
        os.kill(pid, signal.SIGKILL)
    status = None
    while status is None:
        if signal.sigwait(MONITOR_SIGNALS) == AGENT_GONE:
            os.kill(pid, signal.SIGKILL)
        ended, its_status = os.waitpid(pid, os.WNOHANG)
        status = its_status if ended else None
    code = os.waitstatus_to_exitcode(status)
    cleanup.end(code == IN_ORDER)
    _wait_for_sweep(sweeper)
    return 0 if code == IN_ORDER else max(0, code)


def _wait_for_sweep(sweeper: int) -> None:
    deadline = time.monotonic() + SWEEP_TIMEOUT
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(sweeper, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.05)
