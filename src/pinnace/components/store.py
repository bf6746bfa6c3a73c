"""The store: every component's binaries, keyed by component, version and architecture.

    <root>/kubernetes/1.36.3/amd64/kubelet
                                   record.json      checksums, where the binaries came from
    <root>/kubernetes/.lock                         held by the process that installs
    <root>/kubernetes/.staging-…                    an installation in progress; the next one removes it after a crash

An entry appears by one rename, complete, and is never changed in place. So a reader needs no lock, and an interruption
at any point leaves either the old state or the new one.

There are two roots. The *user* store belongs to the user who runs pinnace. The *site* store is beside the installation,
and is filled once for all users by the one who installed pinnace. Anything that another ordinary user could have
written to is refused (see ``pinnace.ownership``): these binaries run with all of our user's rights.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace import ownership
from pinnace.errors import ChecksumError, ComponentError, NoSpaceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pinnace.components.manifest import Component

RECORD = "record.json"
NO_LOCKS_ERRNOS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}  # of a file system without file locks
LOCK_TIMEOUT = 3600.0  # seconds to wait for another fetch; a cold build of Kubernetes on two cores takes 15 minutes


class ComponentState(StrEnum):
    """What the store knows of a component."""

    INSTALLED = "installed"
    DAMAGED = "damaged"
    MISSING = "missing"


class Origin(StrEnum):
    """The source of binaries in a store."""

    RELEASE = "release"
    BUILD = "build"
    BUNDLE = "bundle"


@dataclass(frozen=True, kw_only=True)
class File:
    """An installed binary. With equal size and modification time, the checksum need not be verified again."""

    sha256: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, kw_only=True)
class Record:
    """The content of ``record.json``."""

    component: str
    version: str
    arch: str
    fingerprint: str
    origin: Origin
    detail: str
    files: dict[str, File]

    def dump(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    @staticmethod
    def load(text: str) -> Record:
        data = json.loads(text)
        files = {name: File(**entry) for name, entry in data.pop("files").items()}
        return Record(files=files, origin=Origin(data.pop("origin")), **data)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A component in a store."""

    component: Component
    state: ComponentState
    path: Path
    record: Record | None = None
    reason: str = ""


def user_root() -> Path:
    """``$PINNACE_HOME/components``; without it, below the XDG data directory."""
    home = os.environ.get("PINNACE_HOME")
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home or Path(data) / "pinnace").expanduser().absolute() / "components"


def site_root() -> Path:
    """The site's store, beside the installation of pinnace, for all its users."""
    return Path(sys.prefix) / "share" / "pinnace" / "components"


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def explain_no_space(path: Path, what: str) -> Iterator[None]:
    """Turn ENOSPC and EDQUOT into an error that names the path."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        raise NoSpaceError(
            f"no space left in {path} for {what} ({error.strerror})",
            hint="Free some space or your quota, or set PINNACE_HOME to a directory with more room.",
        ) from error


class ComponentStore:
    """A store: one root directory with components."""

    def __init__(self, root: Path, arch: str) -> None:
        self.root = root
        self.arch = arch

    def directory(self, component: Component) -> Path:
        return self.root / component.name / component.version / self.arch

    def inspect(self, component: Component, *, deep: bool = False) -> Entry:
        """The state of a component. ``deep`` verifies all checksums; otherwise only those of changed files."""
        path = self.directory(component)
        try:
            record = Record.load((path / RECORD).read_text())
        except FileNotFoundError:
            return Entry(component=component, state=ComponentState.MISSING, path=path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            return Entry(component=component, state=ComponentState.DAMAGED, path=path, reason=f"record.json: {error}")
        if record.fingerprint != component.fingerprint:
            return Entry(component=component, state=ComponentState.MISSING, path=path, reason="made by another recipe")
        reason = "; ".join(
            problem for name in component.binaries if (problem := self._problem(path, name, record, deep=deep))
        )
        state = ComponentState.DAMAGED if reason else ComponentState.INSTALLED
        return Entry(component=component, state=state, path=path, record=record, reason=reason)

    def _problem(self, path: Path, name: str, record: Record, *, deep: bool) -> str:
        expected = record.files.get(name)
        try:
            found = (path / name).lstat()
        except FileNotFoundError:
            return f"{name} is missing"
        if expected is None or not stat.S_ISREG(found.st_mode):
            return f"{name} is not what was installed"
        if unsafe := ownership.problem(path / name):
            return unsafe
        if found.st_size != expected.size:
            return f"{name} has {found.st_size} bytes instead of {expected.size}"
        unchanged = found.st_mtime_ns == expected.mtime_ns
        if (deep or not unchanged) and sha256_of(path / name) != expected.sha256:
            return f"{name} does not have its checksum"
        return ""

    def install(self, component: Component, source: Callable[[Path], tuple[Origin, str]]) -> Entry:
        """Have ``source`` write the component's binaries into a directory, and install that atomically.

        The caller holds ``lock(component)``. ``source`` returns the origin of the binaries.
        """
        home = self.root / component.name
        final = self.directory(component)
        with explain_no_space(self.root, component.label):
            self._sweep(home)
            staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=home))
            try:
                origin, detail = source(staging)
                record = self._finish(staging, component, origin, detail)
                ownership.make_directories(final.parent, 0o755)
                if final.exists():
                    final.rename(home / f".staging-old-{os.getpid()}")
                staging.rename(final)
            finally:
                self._sweep(home)
        return Entry(component=component, state=ComponentState.INSTALLED, path=final, record=record)

    def _finish(self, staging: Path, component: Component, origin: Origin, detail: str) -> Record:
        """Make the binaries read-only and durable, and write their record."""
        files = {}
        for name in component.binaries:
            path = staging / name
            if not path.is_file():
                raise ComponentError(f"{component.label}: the {origin} did not give {name}")
            path.chmod(0o555)
            sync(path)
            status = path.stat()
            files[name] = File(sha256=sha256_of(path), size=status.st_size, mtime_ns=status.st_mtime_ns)
        record = Record(
            component=component.name,
            version=component.version,
            arch=self.arch,
            fingerprint=component.fingerprint,
            origin=origin,
            detail=detail,
            files=files,
        )
        (staging / RECORD).write_text(record.dump())
        sync(staging / RECORD)
        staging.chmod(0o755)
        sync(staging)
        return record

    @staticmethod
    def _sweep(home: Path) -> None:
        for leftover in home.glob(".staging-*"):
            shutil.rmtree(leftover, ignore_errors=True)

    @contextlib.contextmanager
    def lock(self, component: Component, waiting: Callable[[str], None]) -> Iterator[None]:
        """Hold the lock for installing a component. Calls ``waiting`` once if another process holds it.

        The kernel releases the lock when its holder ends, however it ends.
        """
        path = self.root / component.name / ".lock"
        try:
            with explain_no_space(self.root, component.label):
                ownership.make_directories(path.parent, 0o755)
                handle = path.open("a+")
        except PermissionError as error:
            raise ComponentError(
                f"no permission to write to {self.root}",
                hint="Set PINNACE_HOME to a directory of your own.",
            ) from error
        with handle:
            deadline = time.monotonic() + LOCK_TIMEOUT
            reported = False
            while not _try_lock(handle.fileno()):
                if not reported:
                    handle.seek(0)
                    waiting(handle.read().strip() or "another process")
                    reported = True
                if time.monotonic() > deadline:
                    raise ComponentError(
                        f"waited {LOCK_TIMEOUT / 60:.0f} minutes for another `pinnace fetch` of {component.label}",
                        hint=f"See whether it still works; the lock is {path}.",
                    )
                time.sleep(0.1)
            handle.truncate(0)
            handle.write(f"process {os.getpid()} on {os.uname().nodename}")
            handle.flush()
            yield


class ComponentStores:
    """The stores of this machine, the user's first."""

    def __init__(self, *stores: ComponentStore) -> None:
        self.stores = stores

    @staticmethod
    def default(arch: str) -> ComponentStores:
        return ComponentStores(ComponentStore(user_root(), arch), ComponentStore(site_root(), arch))

    def inspect(self, component: Component, *, deep: bool = False) -> Entry:
        """The first store that has the component whole; otherwise what the first one says."""
        entries = [store.inspect(component, deep=deep) for store in self.stores]
        return next((entry for entry in entries if entry.state is ComponentState.INSTALLED), entries[0])

    def binary(self, component: Component, name: str) -> Path:
        """The path of a verified binary."""
        return self.binaries(component)[name]

    def binaries(self, component: Component) -> dict[str, Path]:
        """The paths of a component's binaries, all verified."""
        entry = self.inspect(component)
        command = f"pinnace fetch {component.name}" if component.optional else "pinnace fetch"
        if entry.state is ComponentState.INSTALLED:
            return {name: entry.path / name for name in component.binaries}
        if entry.state is ComponentState.DAMAGED:
            raise ChecksumError(
                f"{component.label} in the store is damaged: {entry.reason}", hint=f"Mend it with `{command}`."
            )
        raise ComponentError(f"{component.label} is not in the store", hint=f"Get it with `{command}`.")


def _try_lock(descriptor: int) -> bool:
    """Whether the lock is ours. Where a file system has none, `pinnace doctor` says what to take care of."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS_ERRNOS:
            raise
    return True


def sync(path: Path) -> None:
    """fsync a file or a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
