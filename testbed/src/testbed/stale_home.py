"""A shared home as a host sees it that caches what it has looked up: ``testbed up --stale-home``.

Every host mounts the same directory through a FUSE server of its own, so each has its own cache of the kernel's. Names
are believed for a minute, or for as long as the plan says, also those that were not there; attributes as long as NFS
believes them by default. As with NFS, a file that is opened is asked for anew, and one that another host has removed is
stale (ESTALE). Unlike with NFS, opening a directory does not make the kernel forget names that were not there, as on
file systems that are passed on by a server in between. Listing a directory always asks. There are no locks (ENOLCK), no
sockets and FIFOs, no extended attributes.

The server acts as the user who asks, with the groups that /etc/group gives, and as nobody for root.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import resource
import stat
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from testbed import fuse
from testbed.fuse import Opcode, SetAttr
from testbed.namespaces import MS_NODEV, MS_NOSUID, libc, mount

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["mount_stale"]

DIRECTORY_LIFE, FILE_LIFE = 30, 3  # seconds for which attributes are believed: acdirmin, acregmin of nfs(5)
NOBODY = 65534
MAX_WRITE = 128 << 10
BUFFER = MAX_WRITE + 4096
KINDS = {"directory": 4, "file": 8, "link": 10, "other": 0}  # DT_DIR, DT_REG, DT_LNK, DT_UNKNOWN
SILENT = (Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT)  # have no answer
OPEN_FLAGS = os.O_ACCMODE | os.O_APPEND
CREATE_FLAGS = OPEN_FLAGS | os.O_CREAT | os.O_EXCL | os.O_TRUNC


@dataclass(kw_only=True)
class Inode:
    """A file that the kernel knows. ``descriptor`` is open with O_PATH."""

    descriptor: int
    lookups: int = 0
    opened: int = 0

    @property
    def path(self) -> str:
        return f"/proc/self/fd/{self.descriptor}"

    def about(self) -> os.stat_result:
        return os.fstat(self.descriptor)

    def is_removed(self) -> bool:
        """Whether it has no name any more. If another host has removed it, ours still has the name."""
        return not self.about().st_nlink


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the kernel asks for, and for whom."""

    opcode: int
    unique: int
    node: int
    uid: int
    gid: int
    body: bytes


class HomeServer:
    """One mount of a directory. ``groups`` are those of users, by their ids; ``name_life`` is in seconds."""

    def __init__(self, device: int, root: int, groups: Mapping[int, Sequence[int]], name_life: int) -> None:
        self.device = device
        self.groups = groups
        self.name_life = name_life
        self.user = (0, 0)
        self.inodes = {fuse.ROOT: Inode(descriptor=root, lookups=1)}
        self.nodes = {key(os.fstat(root)): fuse.ROOT}
        self.numbers = itertools.count(fuse.ROOT + 1)
        self.listings: dict[int, list[bytes]] = {}
        self.buffer = bytearray(BUFFER)
        self.handlers: dict[int, Callable[[Request], bytes]] = {
            Opcode.INIT: self.init,
            Opcode.LOOKUP: lambda request: self.entry(request.node, names(request.body)[0]),
            Opcode.FORGET: self.forget,
            Opcode.BATCH_FORGET: self.batch_forget,
            Opcode.INTERRUPT: nothing,
            Opcode.DESTROY: nothing,
            Opcode.FLUSH: nothing,
            Opcode.FSYNCDIR: nothing,
            Opcode.GETATTR: self.getattr,
            Opcode.SETATTR: self.setattr,
            Opcode.READLINK: lambda request: os.readlink(b"", dir_fd=self.inodes[request.node].descriptor),
            Opcode.SYMLINK: self.symlink,
            Opcode.MKNOD: self.mknod,
            Opcode.MKDIR: self.mkdir,
            Opcode.UNLINK: self.unlink,
            Opcode.RMDIR: self.rmdir,
            Opcode.RENAME: self.rename,
            Opcode.RENAME2: self.rename2,
            Opcode.LINK: self.link,
            Opcode.OPEN: self.open,
            Opcode.CREATE: self.create,
            Opcode.READ: self.read,
            Opcode.WRITE: self.write,
            Opcode.RELEASE: self.release,
            Opcode.FSYNC: self.fsync,
            Opcode.OPENDIR: self.opendir,
            Opcode.READDIR: self.readdir,
            Opcode.RELEASEDIR: self.release,
            Opcode.STATFS: lambda _request: fuse.statfs_out(os.fstatvfs(self.inodes[fuse.ROOT].descriptor)),
            Opcode.GETLK: no_locks,
            Opcode.SETLK: no_locks,
            Opcode.SETLKW: no_locks,
        }

    def serve(self) -> None:
        """Answer until nothing has the directory mounted any more."""
        while True:
            try:
                size = os.readv(self.device, [self.buffer])
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno not in {errno.ENOENT, errno.EINTR, errno.EAGAIN}:
                    raise
                continue
            header = fuse.IN_HEADER.unpack_from(self.buffer)
            body = bytes(memoryview(self.buffer)[fuse.IN_HEADER.size : size])
            request = Request(
                opcode=header[1], unique=header[2], node=header[3], uid=header[4], gid=header[5], body=body
            )
            self.answer(request)

    def answer(self, request: Request) -> None:
        code, payload = 0, b""
        try:
            if (handler := self.handlers.get(request.opcode)) is None:
                raise error(errno.ENOSYS)
            self.become(request)
            payload = handler(request)
        except OSError as failure:
            code = failure.errno or errno.EIO
        if request.opcode not in SILENT:
            length = fuse.OUT_HEADER.size + len(payload)
            self.send(fuse.OUT_HEADER.pack(length, -code, request.unique) + payload)

    def send(self, message: bytes) -> None:
        with contextlib.suppress(FileNotFoundError):  # whoever asked was interrupted, or knows the file no more
            os.write(self.device, message)

    def become(self, request: Request) -> None:
        """Have the rights of the user who asks, and no more: root of a host is nobody here."""
        user = (request.uid, request.gid) if request.uid else (NOBODY, NOBODY)
        if user != self.user:
            os.setgroups(self.groups.get(user[0], ()))
            libc.setfsgid(ctypes.c_uint(user[1]))
            libc.setfsuid(ctypes.c_uint(user[0]))
            self.user = user

    def init(self, request: Request) -> bytes:
        readahead = fuse.INIT_IN.unpack_from(request.body)[2]
        return fuse.init_out(readahead, max_write=MAX_WRITE)

    # Names

    def directory(self, node: int) -> int:
        return self.inodes[node].descriptor

    def entry(self, parent: int, name: bytes) -> bytes:
        """What a name leads to. That it leads nowhere is believed for as long."""
        try:
            flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=self.directory(parent))
        except FileNotFoundError:
            if self.inodes[parent].is_removed():
                raise error(errno.ESTALE) from None
            return fuse.ENTRY_OUT.pack(0, 0, self.name_life, 0, 0, 0) + bytes(fuse.ATTR.size)
        about = os.fstat(descriptor)
        node = self.nodes.get(key(about))
        if node is None:
            node = self.nodes[key(about)] = next(self.numbers)
            self.inodes[node] = Inode(descriptor=descriptor)
        else:
            os.close(descriptor)
        self.inodes[node].lookups += 1
        return fuse.ENTRY_OUT.pack(node, 0, self.name_life, life(about), 0, 0) + fuse.attributes(about)

    def forget(self, request: Request) -> bytes:
        self.forget_one(request.node, int.from_bytes(request.body[:8], "little"))
        return b""

    def batch_forget(self, request: Request) -> bytes:
        for node, count in fuse.FORGET_ONE.iter_unpack(request.body[8:]):
            self.forget_one(node, count)
        return b""

    def forget_one(self, node: int, count: int) -> None:
        inode = self.inodes[node]
        inode.lookups -= count
        if inode.lookups <= 0 and node != fuse.ROOT:
            del self.inodes[node], self.nodes[key(inode.about())]
            os.close(inode.descriptor)

    def symlink(self, request: Request) -> bytes:
        name, target = names(request.body)[:2]
        os.symlink(target, name, dir_fd=self.directory(request.node))
        return self.entry(request.node, name)

    def mknod(self, request: Request) -> bytes:
        mode, name = fuse.MKNOD_IN.unpack_from(request.body)[0], names(request.body[fuse.MKNOD_IN.size :])[0]
        if not stat.S_ISREG(mode):
            raise error(errno.EOPNOTSUPP)
        flags = os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        os.close(os.open(name, flags, stat.S_IMODE(mode), dir_fd=self.directory(request.node)))
        return self.entry(request.node, name)

    def mkdir(self, request: Request) -> bytes:
        mode, name = fuse.MKDIR_IN.unpack_from(request.body)[0], names(request.body[fuse.MKDIR_IN.size :])[0]
        os.mkdir(name, mode, dir_fd=self.directory(request.node))
        return self.entry(request.node, name)

    def unlink(self, request: Request) -> bytes:
        os.unlink(names(request.body)[0], dir_fd=self.directory(request.node))
        return b""

    def rmdir(self, request: Request) -> bytes:
        os.rmdir(names(request.body)[0], dir_fd=self.directory(request.node))
        return b""

    def rename(self, request: Request) -> bytes:
        (to,) = fuse.RENAME_IN.unpack_from(request.body)
        return self.move(request.node, to, request.body[fuse.RENAME_IN.size :])

    def rename2(self, request: Request) -> bytes:
        to, flags, _ = fuse.RENAME2_IN.unpack_from(request.body)
        if flags:
            raise error(errno.EINVAL)
        return self.move(request.node, to, request.body[fuse.RENAME2_IN.size :])

    def move(self, parent: int, to: int, body: bytes) -> bytes:
        old, new = names(body)[:2]
        os.rename(old, new, src_dir_fd=self.directory(parent), dst_dir_fd=self.directory(to))
        return b""

    def link(self, request: Request) -> bytes:
        (node,) = fuse.LINK_IN.unpack_from(request.body)
        name = names(request.body[fuse.LINK_IN.size :])[0]
        os.link(self.inodes[node].path, name, dst_dir_fd=self.directory(request.node), follow_symlinks=True)
        return self.entry(request.node, name)

    # Attributes

    def attributes(self, node: int) -> bytes:
        about = self.inodes[node].about()
        return fuse.ATTR_OUT.pack(life(about), 0, 0) + fuse.attributes(about)

    def getattr(self, request: Request) -> bytes:
        inode = self.inodes[request.node]
        if inode.is_removed() and not inode.opened:  # who has it open may use it on
            raise error(errno.ESTALE)
        return self.attributes(request.node)

    def setattr(self, request: Request) -> bytes:
        valid, _, handle, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid, _ = (
            fuse.SETATTR_IN.unpack_from(request.body)
        )
        path = self.inodes[request.node].path
        if valid & SetAttr.MODE:
            Path(path).chmod(stat.S_IMODE(mode))
        if valid & (SetAttr.UID | SetAttr.GID):
            os.chown(path, uid if valid & SetAttr.UID else -1, gid if valid & SetAttr.GID else -1)
        if valid & SetAttr.SIZE:
            os.truncate(handle if valid & SetAttr.HANDLE else path, size)
        if valid & (SetAttr.ATIME | SetAttr.MTIME):
            about, now = self.inodes[request.node].about(), time.time_ns()
            accessed = atime * 10**9 + atime_ns if valid & SetAttr.ATIME else about.st_atime_ns
            modified = mtime * 10**9 + mtime_ns if valid & SetAttr.MTIME else about.st_mtime_ns
            accessed = now if valid & SetAttr.ATIME_NOW else accessed
            os.utime(path, ns=(accessed, now if valid & SetAttr.MTIME_NOW else modified))
        return self.attributes(request.node)

    # Contents

    def open(self, request: Request) -> bytes:
        return self.opened(request.node, fuse.OPEN_IN.unpack_from(request.body)[0] & OPEN_FLAGS)

    def opendir(self, request: Request) -> bytes:
        return self.opened(request.node, os.O_RDONLY | os.O_DIRECTORY)

    def opened(self, node: int, flags: int) -> bytes:
        """As with NFS: whoever opens a file sees its present size."""
        inode = self.inodes[node]
        if inode.is_removed():
            raise error(errno.ESTALE)
        handle = os.open(inode.path, flags | os.O_CLOEXEC)
        inode.opened += 1
        size = fuse.OUT_HEADER.size + 24
        notification = node.to_bytes(8, "little") + (-1).to_bytes(8, "little", signed=True) + bytes(8)
        self.send(fuse.OUT_HEADER.pack(size, fuse.INVALIDATE_INODE, 0) + notification)
        return fuse.OPEN_OUT.pack(handle, 0, 0)

    def create(self, request: Request) -> bytes:
        flags, mode, _, _ = fuse.CREATE_IN.unpack_from(request.body)
        name = names(request.body[fuse.CREATE_IN.size :])[0]
        flags = flags & CREATE_FLAGS | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(name, flags, stat.S_IMODE(mode), dir_fd=self.directory(request.node))
        entry = self.entry(request.node, name)
        self.inodes[fuse.ENTRY_OUT.unpack_from(entry)[0]].opened += 1
        return entry + fuse.OPEN_OUT.pack(handle, 0, 0)

    def read(self, request: Request) -> bytes:
        handle, offset, size = fuse.READ_IN.unpack_from(request.body)[:3]
        return os.pread(handle, size, offset)

    def write(self, request: Request) -> bytes:
        handle, offset, size = fuse.READ_IN.unpack_from(request.body)[:3]
        data = memoryview(request.body)[fuse.READ_IN.size :][:size]
        return fuse.WRITE_OUT.pack(os.pwrite(handle, data, offset), 0)

    def release(self, request: Request) -> bytes:
        (handle,) = fuse.HANDLE_IN.unpack_from(request.body)
        self.inodes[request.node].opened -= 1
        self.listings.pop(handle, None)
        os.close(handle)
        return b""

    def fsync(self, request: Request) -> bytes:
        os.fsync(fuse.HANDLE_IN.unpack_from(request.body)[0])
        return b""

    def readdir(self, request: Request) -> bytes:
        handle, offset, size = fuse.READ_IN.unpack_from(request.body)[:3]
        if not offset or handle not in self.listings:
            self.listings[handle] = listing(handle)
        found = b""
        for entry in self.listings[handle][offset:]:
            if len(found) + len(entry) > size:
                break
            found += entry
        return found


def listing(handle: int) -> list[bytes]:
    """The entries of a directory, each with its place in this list."""
    own = os.fstat(handle).st_ino
    found = [(own, KINDS["directory"], b"."), (own, KINDS["directory"], b"..")]
    with os.scandir(handle) as entries:
        found += [(entry.inode(), KINDS[kind(entry)], os.fsencode(entry.name)) for entry in entries]
    return [
        fuse.directory_entry(inode, place, of_kind, name) for place, (inode, of_kind, name) in enumerate(found, start=1)
    ]


def kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


def key(about: os.stat_result) -> tuple[int, int]:
    return about.st_dev, about.st_ino


def life(about: os.stat_result) -> int:
    return DIRECTORY_LIFE if stat.S_ISDIR(about.st_mode) else FILE_LIFE


def names(body: bytes) -> list[bytes]:
    """The names at the end of a request, each with a zero behind it."""
    return body.split(b"\0")


def error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def nothing(_request: Request) -> bytes:
    return b""


def no_locks(_request: Request) -> bytes:
    raise error(errno.ENOLCK)


def mount_stale(source: str, target: str, groups: Mapping[int, Sequence[int]], name_life: int) -> None:
    """Mount a directory through a server, which is a child of this process and ends with its namespace."""
    root = os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    mount("home", target, "fuse", MS_NOSUID | MS_NODEV, options)
    if os.fork() == 0:
        serve(device, root, groups, name_life)
    os.close(device)
    os.close(root)


def serve(device: int, root: int, groups: Mapping[int, Sequence[int]], name_life: int) -> NoReturn:
    """Be the server. Standard error stays: it leads to the log of the host's first process."""
    try:
        null = os.open("/dev/null", os.O_RDWR)
        for stream in (sys.stdin, sys.stdout):
            os.dup2(null, stream.fileno())
        os.umask(0)
        os.chdir("/")
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        HomeServer(device, root, groups, name_life).serve()
    except BaseException:  # noqa: BLE001 - nobody else would say it
        traceback.print_exc()
    finally:
        os._exit(0)
