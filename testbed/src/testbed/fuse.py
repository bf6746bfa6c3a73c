"""The part of FUSE's protocol that a file system of directories, files and links needs, as in <linux/fuse.h>."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

__all__ = [
    "ATTR_OUT",
    "CREATE_IN",
    "ENTRY_OUT",
    "FORGET_ONE",
    "HANDLE_IN",
    "INIT_IN",
    "INVALIDATE_INODE",
    "IN_HEADER",
    "LINK_IN",
    "MKDIR_IN",
    "MKNOD_IN",
    "OPEN_IN",
    "OPEN_OUT",
    "OUT_HEADER",
    "READ_IN",
    "RENAME2_IN",
    "RENAME_IN",
    "ROOT",
    "SETATTR_IN",
    "WRITE_OUT",
    "Opcode",
    "SetAttr",
    "attributes",
    "directory_entry",
    "init_out",
    "statfs_out",
]

VERSION = (7, 31)
ROOT = 1  # the node of the mount point
INVALIDATE_INODE = 2  # the code of the notification
BIG_WRITES, AUTO_INVAL_DATA, PARALLEL_DIROPS = 1 << 5, 1 << 12, 1 << 18
POSIX_LOCKS, FLOCK_LOCKS = 1 << 1, 1 << 10  # without these, the kernel has locks of its own for each mount
NAME_MAX = 255


class Opcode(IntEnum):
    """What the kernel asks for."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    GETLK = 31
    SETLK = 32
    SETLKW = 33
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42
    RENAME2 = 45


class SetAttr(IntEnum):
    """Which attributes a SETATTR sets."""

    MODE = 1 << 0
    UID = 1 << 1
    GID = 1 << 2
    SIZE = 1 << 3
    ATIME = 1 << 4
    MTIME = 1 << 5
    HANDLE = 1 << 6
    ATIME_NOW = 1 << 7
    MTIME_NOW = 1 << 8


IN_HEADER = Struct("<IIQQIIIHH")  # length, opcode, unique, node, uid, gid, pid, length of extensions
OUT_HEADER = Struct("<IiQ")  # length, error, unique
INIT_IN = Struct("<IIII")  # major, minor, readahead, flags
FORGET_ONE = Struct("<QQ")  # node, how often
HANDLE_IN = Struct("<Q")  # the beginning of FLUSH, RELEASE and FSYNC
OPEN_IN = Struct("<II")  # flags, FUSE's own
CREATE_IN = Struct("<IIII")  # flags, mode, umask, FUSE's own
MKDIR_IN = Struct("<II")  # mode, umask
MKNOD_IN = Struct("<IIII")  # mode, device, umask
RENAME_IN = Struct("<Q")  # the new directory
RENAME2_IN = Struct("<QII")  # the new directory, flags
LINK_IN = Struct("<Q")  # the node that gets another name
READ_IN = Struct("<QQIIQII")  # handle, offset, size; of WRITE and READDIR too
SETATTR_IN = Struct("<IIQQQQQQIIIIIIII")
ENTRY_OUT = Struct("<QQQQII")  # node, generation, seconds for the name, seconds for the attributes, both in ns
ATTR_OUT = Struct("<QII")  # seconds, ns
OPEN_OUT = Struct("<QII")  # handle, flags
WRITE_OUT = Struct("<II")  # size
ATTR = Struct("<QQQQQQIIIIIIIIII")
STATFS_OUT = Struct("<QQQQQIIII24x")
DIRENT = Struct("<QQII")
INIT_OUT = Struct("<IIIIHHIIHHI28x")


def init_out(readahead: int, *, max_write: int) -> bytes:
    """What this server can do. It wants to be asked for locks, so that it can refuse them."""
    flags = BIG_WRITES | AUTO_INVAL_DATA | PARALLEL_DIROPS | POSIX_LOCKS | FLOCK_LOCKS
    return INIT_OUT.pack(*VERSION, readahead, flags, 16, 12, max_write, 1, 0, 0, 0)


def attributes(about: os.stat_result) -> bytes:
    """struct fuse_attr."""
    seconds, parts = zip(
        *(divmod(time, 10**9) for time in (about.st_atime_ns, about.st_mtime_ns, about.st_ctime_ns)), strict=True
    )
    sizes = (about.st_ino, about.st_size, about.st_blocks)
    owner = (about.st_mode, about.st_nlink, about.st_uid, about.st_gid, about.st_rdev)
    return ATTR.pack(*sizes, *seconds, *parts, *owner, about.st_blksize, 0)


def statfs_out(about: os.statvfs_result) -> bytes:
    blocks = (about.f_blocks, about.f_bfree, about.f_bavail)
    return STATFS_OUT.pack(*blocks, about.f_files, about.f_ffree, about.f_bsize, NAME_MAX, about.f_frsize, 0)


def directory_entry(inode: int, offset: int, kind: int, name: bytes) -> bytes:
    """struct fuse_dirent, padded. ``offset`` is where the next one begins, ``kind`` as in readdir(3)."""
    entry = DIRENT.pack(inode, offset, len(name), kind) + name
    return entry + bytes(-len(entry) % 8)
