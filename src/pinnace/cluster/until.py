"""``--until``: when to end a workload that never ends by itself: after a time, or when an object has a condition.

30m                         so long after it was applied
deployment/web=Available    when the object has the condition, as in ``kubectl wait --for=condition=Available``
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from pinnace.errors import ClusterError, UsageError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from types import TracebackType

    from pinnace.cluster.workload import Workload

UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
CONDITION = re.compile(r"([a-z][a-z0-9.-]*/[a-z0-9][a-z0-9.-]*)=([A-Za-z]\S*)", re.IGNORECASE)


def parse_duration(text: str) -> float:
    """Seconds of ``90s``, ``30m``, ``1h30m``, ``2d``; ValueError for anything else."""
    found = DURATION.fullmatch(text)
    if not text or not found:
        raise ValueError(f"{text!r} is no duration such as 90s, 30m, 1h30m or 2d")
    return float(sum(int(count) * unit for count, unit in zip(found.groups("0"), UNITS.values(), strict=True)))


@dataclass(frozen=True, kw_only=True)
class Until:
    """A number of seconds, or a condition of an object."""

    seconds: float | None = None
    resource: str = ""
    condition: str = ""

    @staticmethod
    def parse(text: str) -> Until:
        if found := CONDITION.fullmatch(text):
            return Until(resource=found[1], condition=found[2])
        try:
            return Until(seconds=parse_duration(text))
        except ValueError:
            raise UsageError(
                f"--until {text}: neither a duration nor a condition",
                hint="Say how long (30m), or for what (deployment/web=Available, job/x=Complete).",
            ) from None


class UntilWatcher:
    """Tells whether the time has passed since the workload was applied, or ``kubectl wait`` has seen the condition."""

    def __init__(self, until: Until, workload: Workload, still_there: Callable[[], None]) -> None:
        self._until = until
        self._workload = workload
        self._still_there = still_there
        self._begin = time.monotonic()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        if self._until.resource:
            namespace = self._workload.namespace_of(self._until.resource)
            self._process = self._workload.kubectl.start(*wait_args(self._until, namespace))
        return self

    def __call__(self) -> bool:
        if self._until.seconds is not None:
            return time.monotonic() - self._begin >= self._until.seconds
        if self._process is None or self._process.poll() is None:
            return False
        if self._process.returncode:
            self._still_there()
            message = self._process.stderr.read().strip() if self._process.stderr else ""
            raise ClusterError(f"--until {self._until.resource}={self._until.condition}: {message}")
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
            if self._process.stderr:
                self._process.stderr.close()


def wait_args(until: Until, namespace: str) -> list[str]:
    """The arguments of kubectl; the limit is a year, because a negative one would mean a week."""
    where = [f"--namespace={namespace}"] if namespace else []
    return ["wait", *where, f"--for=condition={until.condition}", until.resource, "--timeout=8760h"]
