"""Measure, and print or store what came out."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import benchmarks.network
from benchmarks.network import table
from benchmarks.network.measurements import MEASUREMENTS, Measurement, NetworkPath, command
from benchmarks.network.objects import PYTHON, RR
from benchmarks.network.plot import svg
from benchmarks.network.results import Result, Sample, as_json, read_sample
from benchmarks.network.site import COMMAND_LIMIT, Site, running_site

if TYPE_CHECKING:
    from collections.abc import Sequence


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.network",
        description=benchmarks.network.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="measure only what has this in its name")
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is measured (default: 5)")
    parser.add_argument("--seconds", type=int, default=4, help="how long a throughput is measured (default: 4)")
    parser.add_argument("--requests", type=int, default=3000, help="how many requests are measured (default: 3000)")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures and samples")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the ratios as bars, in SVG")
    return parser.parse_args(argv)


def measure(site: Site, measurement: Measurement, path: NetworkPath, *, seconds: int, requests: int) -> Sample:
    address = site.addresses[path, measurement.target]
    argv = command(measurement, address, rr=RR, python=PYTHON, seconds=seconds, requests=requests)
    output = site.run(path, argv, client=measurement.client, limit=COMMAND_LIMIT + seconds).stdout
    return read_sample(measurement, output, requests=requests)


def background(site: Site) -> float:
    """The share of the machine's CPU time that is used while nothing is measured: by the cluster, and by others."""
    output = site.run(NetworkPath.BARE, [RR, "cpu", "sleep", "1"]).stdout
    share: float = json.loads(output)["cpu_seconds"] / (os.cpu_count() or 1)
    return share


def measure_all(
    measurements: Sequence[Measurement], rounds: int, *, seconds: int, requests: int
) -> tuple[list[Result], list[float]]:
    """In each round all measurements in turn, in each of them all paths in turn; and what the background was before."""
    samples: list[dict[NetworkPath, list[Sample]]] = [{path: [] for path in NetworkPath} for _ in measurements]
    shares = []
    with running_site() as site:
        for number in range(rounds):
            shares.append(background(site))
            print(
                f"round {number + 1} of {rounds}, in the background: {shares[-1]:.0%} CPU", file=sys.stderr, flush=True
            )
            for measurement, by_path in zip(measurements, samples, strict=True):
                for path, found in by_path.items():
                    found.append(measure(site, measurement, path, seconds=seconds, requests=requests))
    pairs = zip(measurements, samples, strict=True)
    return [Result(measurement=measurement, samples=by_path) for measurement, by_path in pairs], shares


def main() -> int:
    options = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    limits = {"seconds": options.seconds, "requests": options.requests}
    measurements = [measurement for measurement in MEASUREMENTS if options.only in measurement.name]
    results, shares = measure_all(measurements, options.rounds, **limits)
    print(table.markdown(results) if options.markdown else table.text(results))
    if options.json:
        machine = {"kernel": os.uname().release, "cpus": os.cpu_count(), "background": shares}
        options.json.write_text(json.dumps(as_json(results, **limits, **machine), indent=2))
    if options.plot:
        options.plot.write_text(svg(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
