"""What the bed keeps on disk: its directories, the lock, and the file that says which processes hold the hosts."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.errors import BedError
from testbed.namespaces import start_time
from testbed.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Directories", "Holder", "Phase", "State", "locked"]

DEFAULT_STATE = Path("/var/lib/testbed")
DEFAULT_CACHE = Path("/var/cache/testbed")
LOCK_LIMIT = 10.0


class Phase(StrEnum):
    """How far ``testbed up`` came."""

    STARTING = "starting"
    UP = "up"


@dataclass(frozen=True, kw_only=True)
class Directories:
    """Where everything of the bed is."""

    state: Path = DEFAULT_STATE
    cache: Path = field(default_factory=lambda: Path(os.environ.get("TESTBED_CACHE") or DEFAULT_CACHE))

    @classmethod
    def from_environment(cls) -> Directories:
        return cls(state=Path(os.environ.get("TESTBED_STATE") or DEFAULT_STATE).absolute())

    @property
    def cgroup(self) -> str:
        """The name of the bed's cgroups: two beds with two state directories do not meet."""
        if self.state == DEFAULT_STATE:
            return "testbed"
        return "testbed-" + hashlib.sha256(str(self.state).encode()).hexdigest()[:8]

    @property
    def file(self) -> Path:
        return self.state / "bed.json"

    @property
    def lock(self) -> Path:
        """The one file that ``down`` leaves: to remove a lock is a race."""
        return self.state / "lock"

    @property
    def etc(self) -> Path:
        return self.state / "etc"

    @property
    def opt(self) -> Path:
        return self.state / "opt"

    @property
    def home(self) -> Path:
        return self.state / "home"

    def host(self, name: str) -> Path:
        return self.state / "hosts" / name


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The first process of a host. A pid alone may name another process by now; with its start time it cannot."""

    pid: int
    start_time: int

    def alive(self) -> bool:
        return start_time(self.pid) == self.start_time


@dataclass(frozen=True, kw_only=True)
class State:
    """The contents of the state file."""

    plan: Plan
    phase: Phase
    holders: dict[str, Holder]
    cut: frozenset[str] = frozenset()

    def with_holder(self, host: str, holder: Holder) -> State:
        return replace(self, holders=self.holders | {host: holder})

    def without_holder(self, host: str) -> State:
        return replace(self, holders={name: holder for name, holder in self.holders.items() if name != host})

    def write(self, directories: Directories) -> None:
        data = {
            "phase": self.phase,
            "plan": self.plan.as_json(),
            "holders": {name: asdict(holder) for name, holder in self.holders.items()},
            "cut": sorted(self.cut),
        }
        new = directories.file.with_suffix(".new")
        new.write_text(json.dumps(data, indent=2) + "\n")
        new.rename(directories.file)

    @classmethod
    def read(cls, directories: Directories) -> State | None:
        """None without a file; a BedError where it cannot be understood."""
        try:
            data: dict[str, Any] = json.loads(directories.file.read_text())
            return cls(
                plan=Plan.from_json(data["plan"]),
                phase=Phase(data["phase"]),
                holders={name: Holder(**holder) for name, holder in data["holders"].items()},
                cut=frozenset(data["cut"]),
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise BedError(f"{directories.file} is damaged: {error}.", hint="testbed clean") from error


@contextmanager
def locked(directories: Directories, *, waiting: Callable[[str], None], limit: float = LOCK_LIMIT) -> Iterator[None]:
    """One command that changes the bed at a time. The kernel gives the lock back when its holder dies."""
    directories.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    with directories.lock.open("a") as file:
        end = time.monotonic() + limit
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise BedError(
                        f"Another testbed command has been at work for more than {limit:.0f} s.",
                        hint=f"Wait for it. It holds {directories.lock}.",
                    ) from None
                if not told:
                    waiting("another testbed command is at work")
                    told = True
                time.sleep(0.1)
        yield
