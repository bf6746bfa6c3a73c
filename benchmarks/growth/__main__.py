"""Measure, and print or store what came out."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import benchmarks.growth
from benchmarks.growth.processes import Process, by_component
from benchmarks.growth.site import IMAGE, Site, running_site
from pinnace.bench.growth import results
from pinnace.bench.growth.results import Size
from pinnace.bench.growth.sizes import DEFAULT_SIZES, NodesAndPods, parse_sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinnace.bench.growth.load import LoadSample

NAMES = {
    "kube-apiserver": "apiserver_mib",
    "etcd": "etcd_mib",
    "kube-controller-manager": "controller_manager_mib",
    "kube-scheduler": "scheduler_mib",
}
PODS_PER_NODE = 4  # on real nodes


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def sizes(text: str) -> tuple[NodesAndPods, ...]:
    """``100:1000`` is 100 nodes with 1,000 pods. None of them, if the text is empty."""
    try:
        return parse_sizes(text) if text else ()
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.growth",
        description=benchmarks.growth.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--simulated", type=sizes, default=DEFAULT_SIZES, metavar="NODES:PODS,…",
        help="sizes with simulated nodes, each larger than the one before (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--real", type=numbers, default="1,2,4,8,16", metavar="NODES,…",
        help="numbers of real nodes, a cluster for each (default: 1,2,4,8,16)",
    )  # fmt: skip
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures, and series that can be drawn")
    return parser.parse_args(argv)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def figures(sample: LoadSample, processes: list[Process]) -> dict[str, float | None]:
    """What the client has measured, and the memory of the control plane's processes."""
    taken = by_component(processes)
    memory = {name: taken[found]["mebibytes"] for found, name in NAMES.items() if found in taken}
    return results.figures(sample) | memory


def cpu_seconds(taken: dict[str, dict[str, float]]) -> float:
    """What the control plane has used so far. Other load on the machine does not change it much."""
    return sum(taken[name]["cpu_seconds"] for name in NAMES if name in taken)


def cpu_per_pod(sample: LoadSample, spent: float) -> float:
    """Milliseconds of CPU for each pod that was made for this size, with its node's part."""
    return spent * 1000 / (sample.new_pods + sample.probe.pods)


def per_node(links: list[Process]) -> dict[str, float | None]:
    """Threads and connections of the process that has the links: of the head, which talks to all nodes, and others."""
    if not links:
        return {}
    head, *others = links
    found: dict[str, float | None] = {"head_threads": head.threads, "head_links": head.sockets}
    if others:
        found["node_threads"] = median(process.threads for process in others)
        found["node_links"] = median(process.sockets for process in others)
    return found


def simulated(steps: Sequence[NodesAndPods]) -> list[Size]:
    """One cluster of one real node, to which simulated nodes and their pods are added step by step."""
    found = []
    with running_site(1, simulator=True) as site:
        site.up(1, "--mem", "7000M")
        spent = cpu_seconds(by_component(site.processes()))
        with site.simulator():
            for nodes, pods in steps:
                sample = site.measure(nodes, pods)
                processes = site.processes()
                taken = by_component(processes)
                raw = {"sample": asdict(sample), "processes": taken, "load_average": os.getloadavg()}
                cost = {"cpu_ms_per_pod": cpu_per_pod(sample, cpu_seconds(taken) - spent)}
                spent = cpu_seconds(taken)
                found.append(Size(figures=figures(sample, processes) | cost, raw=raw))
                say(json.dumps(found[-1].figures))
        site.down()
    return found


def real(counts: Sequence[int]) -> list[Size]:
    """A cluster for each number of nodes, with real pods."""
    found: list[Size] = []
    with running_site(max(counts), simulator=False) as site:
        for nodes in counts:
            found.append(real_size(site, nodes, found[0] if found else None))
            say(json.dumps(found[-1].figures))
    return found


def real_size(site: Site, nodes: int, smallest: Size | None) -> Size:
    """``smallest`` is the first size that was measured, for what each further node takes."""
    ready = site.up(nodes, "--mem", "7000M" if nodes == 1 else "3000M", "--image", f"{IMAGE}.tar")
    idle = site.processes()
    image = f"localhost/pinnace-test/{IMAGE}:1"
    sample = site.measure(nodes, PODS_PER_NODE * nodes, "--real", image, "--rate", "2", "--seconds", "15")
    processes, links = site.processes(), site.links()
    down = site.down()
    own: dict[str, float | None] = {"nodes_seconds": ready, "down_seconds": down}
    raw = {
        "sample": asdict(sample),
        "idle": by_component(idle),
        "processes": by_component(processes),
        "load_average": os.getloadavg(),
    }
    own["all_mib"] = total = sum(process.mebibytes for process in idle)
    if smallest:
        first, count = smallest.figures["all_mib"] or 0.0, smallest.figures["nodes"] or 0.0
        own["further_node_mib"] = (total - first) / (nodes - count)
    return Size(figures=figures(sample, processes) | per_node(links) | own, raw=raw)


def main() -> int:
    options = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parts: dict[str, Sequence[Size]] = {}
    if options.simulated:
        parts["simulated"] = simulated(options.simulated)
    if options.real:
        parts["real"] = real(options.real)
    for name, found in parts.items():
        print(f"{name} nodes\n\n{results.markdown(found) if options.markdown else results.text(found)}\n")
    if options.json:
        machine = {"kernel": os.uname().release, "cpus": os.cpu_count()}
        options.json.write_text(json.dumps(results.as_json(parts, **machine), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
