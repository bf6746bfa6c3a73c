"""The directories that are volumes, all below one root which nobody else may enter.

<root>/<namespace>-<claim>-<uid>   a volume; open to all users of pods, because the root is closed to all others
<root>/.ephemeral/<volume>         an empty file: this volume ends with the cluster
<root>/.trash/<volume>.<random>    a volume that is being removed

Names come from the API and paths are removed, so both are checked here, and nothing above the root is ever touched.
A marker says what may go, not what must stay: what is forgotten here is kept.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
from pathlib import Path

from pinnace.removal import remove_tree

EPHEMERAL = ".ephemeral"
TRASH = ".trash"
NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,254}")  # no slash, and no dot in front: those are ours
STEM = 200  # of the 255 bytes that a name may have; a namespace and a claim may have 316 together
SHORT = 12

log = logging.getLogger(__name__)


class VolumeNameError(ValueError):
    """Something that is not the name of a volume was to become one, or to be removed as one."""


def volume_name(namespace: str, claim: str, uid: str) -> str:
    """What a user finds: which claim it was, and enough of its uid to tell it from others of the same name."""
    return checked(f"{namespace}-{claim}"[:STEM] + f"-{uid.replace('-', '')[:SHORT]}")


def checked(name: str) -> str:
    if not NAME.fullmatch(name):
        raise VolumeNameError(f"{name!r} is not the name of a volume")
    return name


class Directories:
    """The volumes below one root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, name: str) -> Path:
        return self.root / checked(name)

    def name_of(self, path: str) -> str:
        """The volume at a path that somebody else has written down."""
        if Path(path).parent != self.root:
            raise VolumeNameError(f"{path} is not in {self.root}")
        return checked(Path(path).name)

    def prepare(self) -> None:
        """Make the root, for our user alone."""
        self.root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.root.mkdir(mode=0o700, exist_ok=True)
        self.root.chmod(0o700)
        for part in (EPHEMERAL, TRASH):
            (self.root / part).mkdir(mode=0o700, exist_ok=True)

    def make(self, name: str, *, ephemeral: bool) -> Path:
        """Make a volume, or find it made. The marker comes first: whoever dies here leaves nothing that stays."""
        path = self.path(name)
        self.prepare()
        self.mark(name, ephemeral=ephemeral)
        path.mkdir(exist_ok=True)
        path.chmod(0o777)
        return path

    def mark(self, name: str, *, ephemeral: bool) -> None:
        """Note whether a volume ends with the cluster."""
        marker = self.root / EPHEMERAL / checked(name)
        if not ephemeral:
            marker.unlink(missing_ok=True)
        elif not marker.exists():
            marker.touch(mode=0o600)

    def ephemeral(self) -> set[str]:
        with contextlib.suppress(FileNotFoundError):
            return {entry.name for entry in (self.root / EPHEMERAL).iterdir()}
        return set()

    def discard(self, name: str) -> None:
        """Take a volume away, at once; its content is removed by ``empty_trash``. Gone already is as good."""
        path = self.path(name)
        if os.path.lexists(path):
            path.rename(self.root / TRASH / f"{name}.{secrets.token_hex(4)}")
        self.mark(name, ephemeral=False)

    def empty_trash(self) -> None:
        """Remove what was discarded. What resists (a file that is still open, on NFS) is tried again next time."""
        for entry in (self.root / TRASH).iterdir():
            try:
                remove_tree(entry)
            except Exception:  # one volume's files must not keep those of others
                log.exception("cannot remove %s", entry)

    def end(self) -> bool:
        """Remove what ends with the cluster, and what holds nothing then. Whether all of that is gone."""
        if not self.root.is_dir():
            return True
        self.prepare()
        for name in self.ephemeral():
            with contextlib.suppress(VolumeNameError):
                self.discard(name)
        remove_tree(self.root / TRASH)
        with contextlib.suppress(OSError):
            (self.root / EPHEMERAL).rmdir()
        with contextlib.suppress(OSError):  # retained volumes are in it
            self.root.rmdir()
        return not os.path.lexists(self.root / TRASH)
