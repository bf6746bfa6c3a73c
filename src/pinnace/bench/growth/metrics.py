"""The API server's own metrics: how long requests took between two looks, and what its process takes."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    Buckets = Counter[float]  # by their upper bound, in seconds; cumulative
    Histograms = Mapping["RequestClass", Buckets]

__all__ = ["ProcessUse", "RequestClass", "added", "quantile", "read_histograms", "read_process"]

LINE = re.compile(r"^apiserver_request_sli_duration_seconds_bucket\{(?P<labels>[^}]*)\} (?P<value>\S+)$")
PROCESS = re.compile(r"^process_(resident_memory_bytes|cpu_seconds_total) (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')
UNTIMED = {"WATCH", "CONNECT"}  # they last as long as their client wants


class RequestClass(StrEnum):
    """The classes for which Kubernetes has objectives."""

    SINGLE = "single"  # reads and writes of one object: 1 s
    LIST = "list"  # of a namespace, or of all: 30 s


def read_histograms(text: str) -> dict[RequestClass, Buckets]:
    """From the text of ``/metrics``, all resources and verbs of a class together."""
    found: dict[RequestClass, Buckets] = {kind: Counter() for kind in RequestClass}
    for match in filter(None, map(LINE.match, text.splitlines())):
        labels = dict(LABEL.findall(match["labels"]))
        if labels["verb"] not in UNTIMED:
            kind = RequestClass.LIST if labels["verb"] == "LIST" else RequestClass.SINGLE
            found[kind][float(labels["le"])] += int(float(match["value"]))
    return found


@dataclass(frozen=True, kw_only=True)
class ProcessUse:
    """What the API server's process takes, and has taken since it started."""

    resident_bytes: float
    cpu_seconds: float


def read_process(text: str) -> ProcessUse | None:
    """From the text of ``/metrics``; None if it does not say."""
    found = {name: float(value) for name, value in PROCESS.findall(text)}
    try:
        return ProcessUse(resident_bytes=found["resident_memory_bytes"], cpu_seconds=found["cpu_seconds_total"])
    except KeyError:
        return None


def added(before: Histograms, after: Histograms) -> dict[RequestClass, Buckets]:
    return {
        kind: Counter({bound: count - before[kind][bound] for bound, count in after[kind].items()}) for kind in after
    }


def quantile(share: float, buckets: Buckets) -> float | None:
    """The value below which this share of requests is, as Prometheus estimates it; None if there were none."""
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0
    if not total:
        return None
    lower, below = 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= share * total:
            if math.isinf(bound):
                return lower
            return lower + (bound - lower) * (share * total - below) / (buckets[bound] - below)
        lower, below = bound, buckets[bound]
    return lower
