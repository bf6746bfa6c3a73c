"""What upstream's components say about a start in their own logs, which cost nothing more to keep.

klog (the kubelet, the scheduler) writes a local time without a year; what it is in seconds since the epoch is found
by the time at which the component was started. containerd writes whole times.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING

from pinnace.timeline.steps import StepGroup, TimelineStep

if TYPE_CHECKING:
    from collections.abc import Iterator

KLOG = re.compile(r"[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6}) ")
CONTAINERD = re.compile(r'time="([^"]+)" level=\w+ msg="((?:[^"\\]|\\.)*)"')
SYNC_LOOP_ADD = re.compile(r'"SyncLoop ADD" source="api" pods=\[([^\]]*)\]')
BOUND = re.compile(r'"Successfully bound pod to node" pod="([^"]+)" node="([^"]+)"')
TIME_ZONE_STEP = 900.0  # seconds of which all time zones are multiples


def klog_time(line: str, year: int) -> float | None:
    """When a line was written, as if its time zone were UTC; None if it does not begin with a time."""
    matched = KLOG.match(line)
    if not matched:
        return None
    month, day, hour, minute, second, micro = map(int, matched.groups())
    try:
        return dt.datetime(year, month, day, hour, minute, second, micro, dt.UTC).timestamp()
    except ValueError:  # 29 February, in another year
        return None


def klog_lines(text: str, started: float) -> Iterator[tuple[float, str]]:
    """Every line with its time. The component was started at ``started``: the nearest time zone is the right one."""
    year, zone = dt.datetime.fromtimestamp(started, dt.UTC).year, None
    for line in text.splitlines():
        written = klog_time(line, year)
        if written is None:
            continue
        if zone is None:
            zone = round((started - written) / TIME_ZONE_STEP) * TIME_ZONE_STEP
        yield written + zone, line


def kubelet_steps(text: str, node: str, started: float) -> list[TimelineStep]:
    """When the kubelet registered its node, found it ready, and saw each pod."""
    begun: dict[str, float] = {}
    found = []

    def moment(name: str, group: StepGroup, begin: float, end: float) -> None:
        if name not in begun:
            begun[name] = begin
            found.append(TimelineStep(where=node, name=name, group=group, begin=begin, end=end))

    attempt: float | None = None
    for at, line in klog_lines(text, started):
        if '"Attempting to register node"' in line:
            attempt = attempt or at
        elif '"Successfully registered node"' in line:
            moment("register node", StepGroup.NODE, attempt or at, at)
        elif '"Fast updating node status as it just became ready"' in line:
            moment("node is ready", StepGroup.NODE, at, at)
        elif matched := SYNC_LOOP_ADD.search(line):
            for pod in re.findall(r'"([^"]+)"', matched[1]):
                moment(f"{pod}: kubelet sees it", StepGroup.POD, at, at)
    return found


def scheduler_steps(text: str, started: float) -> list[TimelineStep]:
    """When each pod was bound to which node."""
    return [
        TimelineStep(where=matched[2], name=f"{matched[1]}: scheduled", group=StepGroup.POD, begin=at, end=at)
        for at, line in klog_lines(text, started)
        if (matched := BOUND.search(line))
    ]


class ContainerdLog:
    """Pulls of images, sandboxes and containers, as the kubelet asked for them: each a request and its return."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.steps: list[TimelineStep] = []
        self._begun: dict[str, float] = {}  # requests that have not returned
        self._pods: dict[str, str] = {}  # by their sandboxes
        self._containers: dict[str, str] = {}  # by their ids

    def read(self, text: str) -> list[TimelineStep]:
        for line in text.splitlines():
            if matched := CONTAINERD.match(line):
                self._message(rfc3339(matched[1]), matched[2].replace('\\"', '"'))
        return self.steps

    def _message(self, at: float, message: str) -> None:
        returned = re.search(r' returns(?: (?:sandbox|container) id "(\w+)"| image reference| successfully)', message)
        if matched := re.match(r'PullImage "([^"]+)"', message):
            self._note(f"pull {matched[1].rpartition('/')[2]}", at, returned is not None)
        elif message.startswith("RunPodSandbox for"):
            pod = f"{_field('namespace', message)}/{_field('name', message)}"
            if returned:
                self._pods[returned[1]] = pod
            self._note(f"{pod}: sandbox", at, returned is not None)
        elif matched := re.match(r'CreateContainer within sandbox "(\w+)"', message):
            container = f"{self._pods.get(matched[1], 'pod')}/{_field('name', message)}"
            if returned:
                self._containers[returned[1]] = container
            self._note(f"{container}: create", at, returned is not None)
        elif matched := re.match(r'StartContainer for "(\w+)"', message):
            self._note(f"{self._containers.get(matched[1], 'container')}: start", at, returned is not None)

    def _note(self, name: str, at: float, returned: bool) -> None:
        if not returned:
            self._begun[name] = at
        elif (begin := self._begun.pop(name, None)) is not None:
            self.steps.append(TimelineStep(where=self.node, name=name, group=StepGroup.POD, begin=begin, end=at))


def _field(name: str, message: str) -> str:
    """A field of a sandbox's or container's metadata, which containerd prints in one of two ways."""
    matched = re.search(rf'\b{name.title()}:([^,"}}]+)|\b{name}:"([^"]+)"', message)
    return (matched[1] or matched[2]) if matched else "?"


def rfc3339(text: str) -> float:
    """Seconds since the epoch. Python reads at most microseconds."""
    plain = re.sub(r"(\.\d{6})\d+", r"\1", text).replace("Z", "+00:00")
    return dt.datetime.fromisoformat(plain).timestamp()
