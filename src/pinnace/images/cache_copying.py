"""Copies the cache of unpacked images for a node that starts while another one uses it.

A directory of the pool belongs to one containerd at a time (see ``images.cache``). Its content and the snapshots of its
images are never changed, so a copy has links to the same files, and takes no space. containerd's databases do change:
who takes a directory keeps what they were, in ``ORIGIN``, and a copy gets those.

The other node may end, and remove anything, at any moment. A copy that is not whole is emptied.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from pinnace.images import cache


def copy(source: Path, target: Path) -> bool:
    """Fill ``target``, a new directory for containerd, with what ``source`` had when it was taken. Whether it could.

    Called as root of the user namespace that owns the files, with paths on one mount: link(2) does not cross mounts.
    """
    try:
        _copy(source, target)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):  # also of an image with very deep directories
        cache.empty(target)
        return False
    return True


def _copy(source: Path, target: Path) -> None:
    directory = source / cache.ORIGIN
    origin = cache.read_origin(source)
    for part, digest in origin.closed.parts.items():
        if part.startswith(cache.SNAPSHOTS):
            _link_tree(source / cache.CONTAINERD / part, target / part)
            if cache.fingerprint_of(target / part) != digest:
                raise ValueError(f"{part} has changed")
    (target / cache.BLOBS).mkdir(parents=True, exist_ok=True)
    for name in origin.blobs:
        os.link(source / cache.CONTAINERD / cache.BLOBS / name, target / cache.BLOBS / name)
    for name in cache.DATABASES:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(directory / Path(name).parent.name, target / name)
    if cache.read_origin(source).token != origin.token:
        raise ValueError("it was taken by another node meanwhile")


def _link_tree(source: Path, target: Path) -> None:
    """The same directories with links to the same files, whatever these are: overlayfs has devices for what is gone."""
    about = source.lstat()
    target.mkdir(parents=True)
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _link_tree(Path(entry.path), target / entry.name)
            else:
                os.link(entry.path, target / entry.name, follow_symlinks=False)
    for name in os.listxattr(source):
        with contextlib.suppress(PermissionError, NotImplementedError):  # a label of SELinux is as it should be
            os.setxattr(target, name, os.getxattr(source, name))
    os.chown(target, about.st_uid, about.st_gid)
    target.chmod(about.st_mode & 0o7777)
    os.utime(target, ns=(about.st_atime_ns, about.st_mtime_ns))
