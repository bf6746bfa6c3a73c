"""The namespaces of a node, made by an ordinary user.

    agent ── keeper ── init
              │         PID 1 of the node: all its processes are below it, and end with it
              └─ root of the user namespace; stays behind to remove what belongs to mapped users

The keeper stays in the host's mount namespace. There the node's directory holds nothing but the node's own files; in
the node's namespace the user's home is mounted below it, and to remove it there would remove the home.

If the agent ends, however it ends, the kernel tells the keeper, with SIGUSR2: Slurm may send SIGTERM to every process
of a job that it ends, and that one is not for the keeper. If the keeper ends, the kernel kills init, and with init
every process of the node.
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

from pinnace.sandbox.ids import IDS, given_ids
from pinnace.sandbox.linux import (
    CLONE_NEWCGROUP,
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

REST = CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP
AGENT_GONE = signal.SIGUSR2
SWEEP_LIMIT = 20.0  # seconds
ONE_USER, MANY_USERS = b"1", b"m"
WATCHED = {AGENT_GONE, signal.SIGCHLD}
IN_ORDER = 3  # the exit code of an init that has left its files so that others can use them


class NamespaceError(Exception):
    """The kernel or the site does not let us make a node here. ``hint`` says what to do, where we know it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """What the keeper does with files, as root of the user namespace, in the host's mount namespace.

    ``sweep`` removes what dead nodes have left, while the node lives; ``end`` gets whether the node left in order.
    """

    sweep: Callable[[], None]
    end: Callable[[bool], None]


def map_ids(pid: int) -> bytes:
    """Give a new user namespace root (us) and, if the site's table has them for us, the users 1 to 65536.

    Says which, in the way in which the namespace's first process wants to hear it.
    """
    uid, gid = os.getuid(), os.getgid()
    given = given_ids()
    if given is None:
        for file, content in (("setgroups", "deny"), ("gid_map", f"0 {gid} 1"), ("uid_map", f"0 {uid} 1")):
            Path(f"/proc/{pid}/{file}").write_text(content)
        return ONE_USER
    for tool, own, (begin, count) in (("newuidmap", uid, given[0]), ("newgidmap", gid, given[1])):
        argv = [tool, str(pid), "0", str(own), "1", "1", str(begin), str(min(count, IDS))]
        result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
        if result.returncode:
            raise NamespaceError(f"{tool}: {result.stderr.strip()}")
    return MANY_USERS


def start(inside: Callable[[socket.socket], None], keeping: Keeping) -> tuple[int, socket.socket]:
    """Make the namespaces and run ``inside`` as their first process. Gives the keeper's pid and a socket to ``inside``.

    ``inside`` makes the mount namespace itself (see ``mounts.mount_node``), and says over the socket why it fails.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ready_ours, ready_theirs = socket.socketpair()
    keeper = os.fork()
    if keeper == 0:
        try:
            ours.close()
            ready_ours.close()
            code = _keep(inside, theirs, ready_theirs, keeping)
        except BaseException:  # noqa: BLE001 - nothing of ours may run on in a forked process
            traceback.print_exc()
            code = 1
        sys.stderr.flush()
        os._exit(code)
    theirs.close()
    ready_theirs.close()
    with ready_ours:
        if ready_ours.recv(1) != b"u":
            raise NamespaceError("this host does not allow user namespaces")
        ready_ours.send(map_ids(keeper))
    return keeper, ours


def as_root(work: Callable[[], bool]) -> bool:
    """Do something as the owner of what the pods' users have left, in a user namespace. Whether it succeeded."""
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
            if ours.recv(1) == b"u":
                ours.send(map_ids(child))
    except NamespaceError:
        return False
    finally:
        _, status = os.waitpid(child, 0)
    return status == 0


def _become_root(ready: socket.socket) -> bool:
    """Enter a new user namespace, whose ids the other end of the line has to map. Whether it has."""
    unshare(CLONE_NEWUSER)
    ready.send(b"u")
    users = ready.recv(1)
    if users not in {ONE_USER, MANY_USERS}:
        return False
    if users == MANY_USERS:
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    return True


def _keep(inside: Callable[[socket.socket], None], line: socket.socket, ready: socket.socket, keeping: Keeping) -> int:
    if not _become_root(ready):
        return 1
    sweeper = os.fork()  # before there is a PID namespace: what is in that one dies with init
    if sweeper == 0:
        die_with_parent(signal.SIGKILL)
        keeping.sweep()
        os._exit(0)
    unshare(REST)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    agent = os.getppid()
    init = os.fork()
    if init == 0:
        die_with_parent(signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        try:
            inside(line)
        except BaseException:  # noqa: BLE001 - see above
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    line.close()
    die_with_parent(AGENT_GONE)
    if os.getppid() != agent:  # it ended before we asked to be told
        os.kill(init, signal.SIGKILL)
    status = None
    while status is None:
        if signal.sigwait(WATCHED) == AGENT_GONE:
            os.kill(init, signal.SIGKILL)
        pid, ended = os.waitpid(init, os.WNOHANG)
        status = ended if pid else None
    code = os.waitstatus_to_exitcode(status)
    keeping.end(code == IN_ORDER)
    _wait_for(sweeper)
    return 0 if code == IN_ORDER else max(0, code)


def _wait_for(sweeper: int) -> None:
    """Let the removal of what dead nodes left come to its end, but not for ever."""
    deadline = time.monotonic() + SWEEP_LIMIT
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(sweeper, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.05)
