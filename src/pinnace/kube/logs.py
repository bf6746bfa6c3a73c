"""The log of a container, of which every line is given once, however often the connection breaks.

The kubelet gives its present file alone, and begins another after 10 MiB: lines cannot be counted. So whoever connects
again asks for the last seconds, and leaves out what was given; time stamps, to the nanosecond, tell lines apart.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinnace.kube.client import Api

STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d) ")
MARGIN = 2  # seconds by which a line may be older than one before it: each stream of a container is stamped by itself


def parse(line: str) -> tuple[int | None, str]:
    """The second of a line's time stamp, since the epoch, and the line without it. None if it has no stamp."""
    found = STAMP.match(line)
    second = _second(found[1], found[2]) if found else None
    return (second, line[found.end() :]) if found and second is not None else (None, line)


@functools.lru_cache(maxsize=64)
def _second(moment: str, zone: str) -> int | None:
    try:
        return int(dt.datetime.fromisoformat(moment + zone).timestamp())
    except ValueError:
        return None


class ContainerLog:
    """The output of a container, which may go on. Not for several threads at once."""

    def __init__(self, namespace: str, pod: str, container: str) -> None:
        options = f"container={container}&follow=true&timestamps=true"
        self._path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log?{options}"
        self._latest = 0  # the latest second of which there was a line; 0 before the first
        self._given: dict[int, Counter[str]] = {}  # by their seconds, the lines that the API would give again

    def lines(self, api: Api) -> Iterator[str]:
        """Yield the lines that were not given before, until the container ends. A failure of the API is raised."""
        given = sum(self._given.values(), Counter[str]())
        begins_within_line = bool(self._latest)  # perhaps: the first part of a long one may be older than the rest
        for line in api.stream(self._path + self._since()):
            second, text = parse(line)
            begins_within_line = begins_within_line and second is None
            if given[line]:
                given[line] -= 1
            elif not begins_within_line:
                self._note(self._latest if second is None else second, line)
                yield text

    def _since(self) -> str:
        """The option for the last seconds; the API knows whole ones only."""
        since = dt.datetime.fromtimestamp(self._latest - MARGIN, dt.UTC)
        return f"&sinceTime={since:%Y-%m-%dT%H:%M:%SZ}" if self._latest else ""

    def _note(self, second: int, line: str) -> None:
        if second > self._latest:
            self._latest = second
            self._given = {known: lines for known, lines in self._given.items() if known >= second - MARGIN}
        self._given.setdefault(second, Counter())[line] += 1
