"""The kernel calls that Python does not wrap, named as in their man pages, and the constants they take."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_NOATIME = 0x400
MS_NODIRATIME = 0x800
MS_BIND = 0x1000
MS_REC = 0x4000
MS_UNBINDABLE = 0x20000
MS_PRIVATE = 0x40000
MS_SLAVE = 0x80000
MS_RELATIME = 0x200000
MNT_DETACH = 0x2
MOUNT_ATTR_RDONLY = 0x1
AT_FDCWD = -100
AT_RECURSIVE = 0x8000
RESOLVE_IN_ROOT = 0x10

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_SET_MODE_FILTER = 1

SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
SYS_OPENAT2 = 437  # of all architectures
SYS_MOUNT_SETATTR = 442  # likewise
SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}[os.uname().machine]

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, call: str, *about: str) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}", *about)


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, kind: int) -> None:
    _check(_libc.setns(descriptor, kind), "setns")


def mount(source: str, target: str, filesystem: str = "", flags: int = 0, data: str = "") -> None:
    _check(
        _libc.mount(
            source.encode(), target.encode(), filesystem.encode() or None, ctypes.c_ulong(flags), data.encode() or None
        ),
        "mount",
        target,
    )


def mount_setattr(path: str, *, flags: int, attr_set: int) -> None:
    """From Linux 5.12. With AT_RECURSIVE it applies to all mounts below, too."""
    about = struct.pack("4Q", attr_set, 0, 0, 0)  # struct mount_attr
    _check(_libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, path.encode(), flags, about, len(about)), "mount_setattr", path)


def openat2(directory: int, path: str, flags: int, resolve: int) -> int:
    """From Linux 5.6. With RESOLVE_IN_ROOT the directory is the root for all links on the way."""
    about = struct.pack("3Q", flags, 0, resolve)  # struct open_how
    descriptor: int = _libc.syscall(SYS_OPENAT2, directory, path.encode(), about, len(about))
    _check(descriptor < 0, "openat2", path)
    return descriptor


def inotify_init1(flags: int) -> int:
    descriptor: int = _libc.inotify_init1(flags)
    _check(descriptor < 0, "inotify_init1")
    return descriptor


def umount2(target: str, flags: int = 0) -> None:
    _check(_libc.umount2(target.encode(), flags), "umount2", target)


def pivot_root(new: str, old: str) -> None:
    _check(_libc.syscall(SYS_PIVOT_ROOT, new.encode(), old.encode()), "pivot_root", new)


def seccomp_filter(program: bytes) -> None:
    """Install a filter of 8-byte instructions; the process must be root of its user namespace."""
    instructions = ctypes.create_string_buffer(program, len(program))
    about = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(instructions))  # struct sock_fprog
    _check(_libc.syscall(SYS_SECCOMP, SECCOMP_SET_MODE_FILTER, 0, about), "seccomp")


def sethostname(name: str) -> None:
    _check(_libc.sethostname(name.encode(), len(name)), "sethostname")


def prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), "prctl")


def set_name(name: str) -> None:
    """What ps and top show of this process; the kernel keeps 15 bytes."""
    _check(_libc.prctl(PR_SET_NAME, name.encode(), 0, 0, 0), "prctl")


def no_new_privileges() -> None:
    """Let execve(2) give this process and its children no more privileges: setuid bits have no effect."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def keep_capabilities(kept: int) -> None:
    """Drop all capabilities that are not in the mask ``kept`` from the bounding set, for good. See capabilities(7)."""
    for number in range(64):
        if not kept >> number & 1:
            try:
                prctl(PR_CAPBSET_DROP, number)
            except OSError as error:
                if error.errno == errno.EINVAL:  # beyond the kernel's last capability
                    return
                raise


def die_with_parent(signal: int) -> None:
    """Have the kernel send this process a signal when its parent ends, however it ends."""
    prctl(PR_SET_PDEATHSIG, signal)
