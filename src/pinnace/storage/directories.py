"""The directories of volumes, all below one root that no other user may enter.

<root>/<namespace>-<claim>-<uid>   a volume; open to all users of pods, because the root is closed to all others
<root>/.ephemeral/<volume>         an empty file: this volume ends with the cluster
<root>/.trash/<volume>.<random>    a volume that is being removed

Names come from the API and paths are removed, so both are validated here, and nothing above the root is ever touched.
The markers say which volumes may be removed. So a volume whose marker is lost is kept.
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
NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,254}")  # no slash, and no leading dot: those names are ours
MAX_STEM = 200  # characters of namespace and claim, which may have 316; a file name may have 255 bytes
UID_LENGTH = 12  # characters of the claim's UID

log = logging.getLogger(__name__)


class VolumeNameError(ValueError):
    """A string is not a valid name of a volume."""


def volume_name(namespace: str, claim: str, uid: str) -> str:
    """The name of a volume's directory: namespace, claim, and enough of its UID to be unique."""
    return checked(f"{namespace}-{claim}"[:MAX_STEM] + f"-{uid.replace('-', '')[:UID_LENGTH]}")


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
        """The name of the volume at an untrusted path."""
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
        """Make a volume if it does not exist. The marker comes first: a crash in between leaks nothing."""
        path = self.path(name)
        self.prepare()
        self.mark(name, ephemeral=ephemeral)
        path.mkdir(exist_ok=True)
        path.chmod(0o777)
        return path

    def mark(self, name: str, *, ephemeral: bool) -> None:
        """Record whether a volume ends with the cluster."""
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
        """Move a volume to the trash, if it exists; ``empty_trash`` removes its content."""
        path = self.path(name)
        if os.path.lexists(path):
            path.rename(self.root / TRASH / f"{name}.{secrets.token_hex(4)}")
        self.mark(name, ephemeral=False)

    def empty_trash(self) -> None:
        """Remove discarded volumes. Failures, such as a file that is still open on NFS, are tried again next time."""
        for entry in (self.root / TRASH).iterdir():
            try:
                remove_tree(entry)
            except Exception:  # a failure with one volume must not affect others
                log.exception("cannot remove %s", entry)

    def end(self) -> bool:
        """Remove ephemeral volumes, and the root if it is empty then. Whether all of them are removed."""
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
