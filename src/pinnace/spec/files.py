"""Files in the cluster's directory, which hosts share: a reader sees a whole file or none, and sees it soon.

NFS and other shared file systems remember the names that a host has looked up for up to a minute, also those that were
not there. So a host that waits for another one's file would see it a minute late.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

GONE_ERRNOS = {errno.ENOENT, errno.ESTALE}  # the second: another host has removed it
LIST_INTERVAL = 0.2  # seconds between looks at a directory, however often somebody asks
LIST_SHARE = 10  # times as long as a look at it has taken, if that is longer: there may be thousands of nodes


def write_json(path: Path, data: object) -> None:
    """Write a file that others watch: it appears whole or not at all."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    with os.fdopen(descriptor, "w") as file:
        json.dump(data, file)
    Path(name).rename(path)


def read_json(path: Path) -> Any:
    """Read such a file; None while it is not there."""
    text = _read(path)
    if text is None and is_listed(path):
        text = _read(path)
    return json.loads(text) if text else None


def appearance(path: Path) -> Callable[[], bool]:
    """Whether a file that another host makes is there, to be asked again and again."""
    due, found = 0.0, False

    def look() -> bool:
        nonlocal due, found
        found = found or path.exists()
        begun = time.monotonic()
        if not found and begun >= due:
            found = is_listed(path)
            done = time.monotonic()
            due = done + max(LIST_INTERVAL, LIST_SHARE * (done - begun))
        return found

    return look


def is_listed(path: Path) -> bool:
    """Whether the file server has a file that this host has not found; from then on this host finds it."""
    with contextlib.suppress(OSError):
        if path.name in os.listdir(path.parent):  # noqa: PTH208 - a real opendir, for which NFS asks its server
            return _look_up_anew(path)
    return False


def _look_up_anew(path: Path) -> bool:
    """Make this host forget that there was no such name: one that is to be created is asked of the server again.

    There is one, so it is not created; unless it was removed a moment ago.
    """
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return True
    with os.fdopen(descriptor) as made:
        if os.path.samestat(os.fstat(made.fileno()), path.stat()):  # nobody has written another one meanwhile
            path.unlink()
    return False


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError as error:
        if error.errno in GONE_ERRNOS:
            return None
        raise
