"""What the programs print, as figures."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from pinnace.bench.measurements import STREAM_KERNELS, TaskKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.bench.measurements import Task

JSON_DECODER = json.JSONDecoder()


def parse(task: Task, output: str) -> dict[str, float]:
    """The values of a task's figures. ValueError if the output does not have them."""
    try:
        return PARSERS[task.kind](task, output)
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"{task.kind} printed something else: {error!r}") from error


def one(task: Task, value: str | float) -> dict[str, float]:
    return {task.figures[0].name: float(value)}


def searched(pattern: str, output: str) -> str:
    found = re.search(pattern, output, re.MULTILINE)
    if not found:
        raise ValueError(f"there is no {pattern!r} in what was printed")
    return found[1]


def sysbench(task: Task, output: str) -> dict[str, float]:
    return one(task, searched(r"events per second:\s*([\d.]+)", output))


def stream(_task: Task, output: str) -> dict[str, float]:
    if "values are as expected" not in output:
        raise ValueError("stream computed wrong values")
    return {f"memory-{kernel}": float(searched(rf"^{kernel.title()}\s+([\d.]+) MB/s", output))
            for kernel in STREAM_KERNELS}  # fmt: skip


def fio(task: Task, output: str) -> dict[str, float]:
    """In MiB/s. fio may print a note before its JSON."""
    jobs = {job["jobname"]: job for job in first_json(output)["jobs"]}
    values = {}
    for figure in task.figures:
        pattern = figure.name.rsplit("-", 1)[1]
        direction = "read" if pattern.endswith("read") else "write"
        if jobs[pattern]["error"]:
            raise ValueError(f"fio: {pattern} failed with error {jobs[pattern]['error']}")
        values[figure.name] = jobs[pattern][direction]["bw_bytes"] / 2**20
    return values


def iperf3(task: Task, output: str) -> dict[str, float]:
    """In Mbit/s, as the receiver counted."""
    report = first_json(output)
    if "error" in report:
        raise ValueError(f"iperf3: {report['error']}")
    return one(task, report["end"]["sum_received"]["bits_per_second"] / 1e6)


def rr(task: Task, output: str) -> dict[str, float]:
    return one(task, first_json(output)["median"])


def dnsperf(task: Task, output: str) -> dict[str, float]:
    completed, sent = (int(searched(rf"Queries {word}:\s+(\d+)", output)) for word in ("completed", "sent"))
    if completed < sent * 0.99:
        raise ValueError(f"dnsperf: only {completed} of {sent} look-ups were answered")
    return one(task, searched(r"Queries per second:\s+([\d.]+)", output))


def first_json(output: str) -> Any:
    """The first object of an output, with whatever is around it."""
    begin = output.find("{")
    if begin < 0:
        raise ValueError("no result was printed")
    return JSON_DECODER.raw_decode(output[begin:])[0]


PARSERS: dict[TaskKind, Callable[[Task, str], dict[str, float]]] = {
    TaskKind.SYSBENCH: sysbench,
    TaskKind.STREAM: stream,
    TaskKind.FIO: fio,
    TaskKind.IPERF3: iperf3,
    TaskKind.RR: rr,
    TaskKind.DNSPERF: dnsperf,
}
