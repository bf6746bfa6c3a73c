"""The system calls that make and enter namespaces, named as in the man pages.

Python 3.11 has neither ``os.unshare`` nor ``os.setns``, and no version has ``mount``. Everything is loaded on import:
after ``setns`` or ``mount`` the files of this package may not be there any more.
"""

from __future__ import annotations

import ctypes
import fcntl
import os

__all__ = [
    "ALL_NAMESPACES",
    "CLONE_NEWCGROUP",
    "MNT_DETACH",
    "MS_BIND",
    "MS_NODEV",
    "MS_NOEXEC",
    "MS_NOSUID",
    "libc",
    "mount",
    "next_mount_namespace",
    "noexec",
    "pdeathsig",
    "pivot_root",
    "private",
    "readonly",
    "readwrite",
    "setns",
    "start_time",
    "umount2",
    "unshare",
]

# <linux/sched.h>
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
ALL_NAMESPACES = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
# <linux/mount.h>
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_PRIVATE = 0x40000
MNT_DETACH = 0x2
MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOEXEC = 0x8
# <linux/fcntl.h>, <linux/prctl.h>
AT_FDCWD = -100
AT_RECURSIVE = 0x8000
PR_SET_PDEATHSIG = 1
NS_GET_MNTNS_ID = 0x8008B705  # <linux/nsfs.h>
# <asm-generic/unistd.h>: system calls since Linux 5.1 have one number on all architectures
NR_MOUNT_SETATTR = 442
NR_PIVOT_ROOT = 41 if os.uname().machine == "aarch64" else 155  # glibc has no function for it

libc = ctypes.CDLL(None, use_errno=True)


class MountAttr(ctypes.Structure):
    """struct mount_attr of mount_setattr(2)."""

    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def check(result: int, call: str, target: str = "") -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}", target or None)


def unshare(flags: int) -> None:
    check(libc.unshare(flags), "unshare")


def next_mount_namespace(processor: int) -> int:
    """The number that a mount namespace made on this processor would have: a child makes one."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.sched_setaffinity(0, {processor})
            unshare(CLONE_NEWNS)
            number = bytearray(8)
            fcntl.ioctl(os.open("/proc/self/ns/mnt", os.O_RDONLY), NS_GET_MNTNS_ID, number)
            os.write(writer, number)
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as told:
        return int.from_bytes(told.read(), "little")  # 0 where the kernel does not tell


def setns(fd: int, flags: int) -> None:
    """``fd`` may be a pidfd: then all of ``flags`` are entered at once (Linux 5.8)."""
    check(libc.setns(fd, flags), "setns")


def mount(source: str, target: str, fstype: str = "", flags: int = 0, data: str = "") -> None:
    arguments = (
        source.encode(),
        target.encode(),
        fstype.encode() or None,
        ctypes.c_ulong(flags),
        data.encode() or None,
    )
    check(libc.mount(*arguments), f"mount {source} ({fstype or 'bind'}, {data or 'no options'}) on", target)


def umount2(target: str, flags: int) -> None:
    check(libc.umount2(target.encode(), flags), "umount2", target)


def pivot_root(new: str, old: str) -> None:
    """``new``, a mount point, becomes the root of this namespace; what was it before is then at ``old``, below it."""
    check(libc.syscall(NR_PIVOT_ROOT, new.encode(), old.encode()), "pivot_root", new)


def mount_setattr(path: str, flags: int, attributes: MountAttr) -> None:
    size = ctypes.sizeof(attributes)
    result = libc.syscall(NR_MOUNT_SETATTR, AT_FDCWD, path.encode(), flags, ctypes.byref(attributes), size)
    check(result, "mount_setattr", path)


def private(path: str) -> None:
    """No mount below ``path`` gets out of this namespace, nor into it."""
    mount_setattr(path, AT_RECURSIVE, MountAttr(propagation=MS_PRIVATE))


def readonly(path: str) -> None:
    """Nothing below ``path`` can be written any more in this namespace."""
    mount_setattr(path, AT_RECURSIVE, MountAttr(attr_set=MOUNT_ATTR_RDONLY))


def readwrite(path: str) -> None:
    mount_setattr(path, 0, MountAttr(attr_clr=MOUNT_ATTR_RDONLY))


def noexec(path: str) -> None:
    """Nothing of the mount at ``path`` can be executed any more."""
    mount_setattr(path, 0, MountAttr(attr_set=MOUNT_ATTR_NOEXEC))


def pdeathsig(signal_number: int) -> None:
    """Have the kernel send this signal to us when our parent dies. A change of user takes it back."""
    check(libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl")


def start_time(pid: int) -> int | None:
    """When this process started, in clock ticks since boot; with the pid it names a process for good."""
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - pathlib is slow
            stat = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    after_name = stat[stat.rindex(")") + 2 :].split()
    return None if after_name[0] in "ZX" else int(after_name[19])
