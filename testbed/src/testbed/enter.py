"""Run one command inside a host, as if it had been started there.

Started by ``argv`` of an ``Entry``, which it gets as JSON. Exit code, streams, signals and the terminal pass through;
when this process is killed, the command dies too. With ``log`` the command is a daemon: it gets the log for its output
and lives on. Tests do this ten thousand times, so it imports nothing that takes long (dataclasses, pathlib, typing).

On a terminal the command gets a new one from the host's own devpts, as with ssh, so that job control and ``tty`` work.
Otherwise it has our streams, in a session of its own: a signal that a terminal would send to a whole process group
(INT, QUIT, HUP, TSTP) goes on to the group, any other to the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp  # noqa: F401 - loaded before the files of the interpreter are out of sight
import json
import os
import pwd
import resource
import select
import signal
import struct
import sys
import termios
import tty
import warnings  # noqa: F401 - os.execvpe would load it where there is none
from types import SimpleNamespace

from testbed.namespaces import ALL_NAMESPACES, pdeathsig, setns, start_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from testbed.entry import Entry

__all__ = ["environment", "exit_code", "run"]

PATH = "/opt/pinnace/bin:/usr/local/bin:/usr/bin:/bin"
SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin:"
GROUP_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP)
FORWARDED = (*GROUP_SIGNALS, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGWINCH)


def environment(user: pwd.struct_passwd, term: str) -> dict[str, str]:
    """What a login gives, and nothing of the caller's."""
    return {
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "SHELL": user.pw_shell if user.pw_uid else "/bin/bash",
        "PATH": (SYSTEM_PATH if user.pw_uid == 0 else "") + PATH,
        "LANG": "C.UTF-8",
        "TERM": term,
    }


def exit_code(status: int) -> int:
    """What a shell would say about a wait status."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def run() -> NoReturn:
    try:
        enter(SimpleNamespace(**json.loads(sys.argv[1])), sys.argv[2:])  # type: ignore[arg-type]  # see above
    except ProcessLookupError:
        fail("this host is down", 1)


def enter(entry: Entry, command: list[str]) -> NoReturn:
    holder = os.pidfd_open(entry.pid)
    if start_time(entry.pid) != entry.start_time:
        raise ProcessLookupError
    os.sched_setaffinity(0, os.sched_getaffinity(entry.pid))
    groups = [os.open(f"{group}/cgroup.procs", os.O_WRONLY) for group in entry.cgroups]
    term = os.environ.get("TERM", "dumb")
    setns(holder, ALL_NAMESPACES)  # for the pid namespace this means: for our children
    user = find_user(entry)
    terminal = not entry.log and os.isatty(0) and os.isatty(1)
    master, slave = os.openpty() if terminal else (-1, -1)
    if terminal:
        copy_size(master)  # before the command can ask for it
    alive, our_end = os.pipe()  # the child sees its end when we die
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    child = os.fork()
    if child == 0:
        os.close(our_end)
        if entry.log:
            leave_daemon()
        for group in groups:
            os.write(group, b"0")
        os.setsid()
        open_streams(entry, slave, user)
        execute(entry, command, user, term, alive)
    if entry.log:
        os._exit(exit_code(os.waitpid(child, 0)[1]))
    if terminal:
        os.close(slave)
        os._exit(relay(child, master))
    os._exit(follow(child))


def leave_daemon() -> None:
    """Go on in a child, and end when that has become the daemon: from then on it can be found by its name.

    An orphan goes to the first process of its parent's pid namespace, so the parent must be in the host's.
    """
    reader, writer = os.pipe()  # closed by exec
    if os.fork():
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)


def find_user(entry: Entry) -> pwd.struct_passwd:
    """As the host knows them; by its files, since NSS modules of another release may not fit this process."""
    try:
        return pwd.getpwnam(entry.user)
    except KeyError:
        with open("/var/lib/extrausers/passwd") as lines:  # noqa: PTH123
            for fields in (line.rstrip("\n").split(":") for line in lines):
                if fields[0] == entry.user:
                    return pwd.struct_passwd((*fields[:2], int(fields[2]), int(fields[3]), *fields[4:]))
        fail(f"{entry.host} has no user {entry.user}", 1)


def fail(message: str, code: int) -> NoReturn:
    os.write(2, f"testbed: {message}\n".encode())
    os._exit(code)


def open_streams(entry: Entry, slave: int, user: pwd.struct_passwd) -> None:
    if slave >= 0:
        os.fchown(slave, user.pw_uid, -1)
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        streams = (slave, slave, slave)
    elif entry.log:
        log = os.open(entry.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.fchown(log, user.pw_uid, user.pw_gid)
        streams = (os.open("/dev/null", os.O_RDONLY), log, log)
    else:
        return
    for fd, stream in enumerate(streams):
        os.dup2(stream, fd)


def execute(entry: Entry, command: list[str], user: pwd.struct_passwd, term: str, alive: int) -> NoReturn:
    os.umask(0o022)
    for name, most in entry.limits.items():
        resource.setrlimit(getattr(resource, name), (most, most))
    os.initgroups(user.pw_name, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    if not entry.log:
        pdeathsig(signal.SIGKILL)
        if select.select([alive], [], [], 0)[0]:  # our parent died before that; getppid is 0 in any case
            os._exit(1)
    for number in (*FORWARDED, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    variables = environment(user, term) | entry.variables
    try:
        os.chdir(entry.cwd or (user.pw_dir if os.path.isdir(user.pw_dir) else "/"))  # noqa: PTH112 - pathlib is slow
    except OSError as error:
        fail(f"cd {error.filename}: {error.strerror}", 1)
    try:
        os.execvpe(command[0], command, variables)  # noqa: S606 - no shell wanted
    except FileNotFoundError:
        fail(f"{command[0]}: not found on {entry.host}", 127)
    except OSError as error:
        fail(f"{command[0]}: {error.strerror}", 126)


def forward_signals(child: int) -> None:
    def forward(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if number in GROUP_SIGNALS else os.kill)(child, number)

    for number in FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def follow(child: int) -> int:
    forward_signals(child)
    return exit_code(os.waitpid(child, 0)[1])


def copy_size(master: int) -> None:
    """Give the new terminal the size of the caller's."""
    fcntl.ioctl(master, termios.TIOCSWINSZ, fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(struct.calcsize("4H"))))


def relay(child: int, master: int) -> int:
    """Carry bytes between the caller's terminal and the new one until the command has ended."""
    before = termios.tcgetattr(0)
    forward_signals(child)
    signal.signal(signal.SIGWINCH, lambda _number, _frame: copy_size(master))
    copy_size(master)
    tty.setraw(0)
    sources = [0, master]
    try:
        while master in sources:
            for source in select.select(sources, [], [])[0]:
                data = read(source)
                if data:
                    write_all(1 if source == master else master, data)
                else:
                    sources.remove(source)
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
    return exit_code(os.waitpid(child, 0)[1])


def read(fd: int) -> bytes:
    try:
        return os.read(fd, 65_536)
    except OSError:  # EIO: the last process has closed the other end
        return b""


def write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
