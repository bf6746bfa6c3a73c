"""The page for a site's administrators: what pinnace needs of a partition, what is there, what works without.

One node of each kind is asked, in a small job. The page is Markdown, from pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pinnace import __version__
from pinnace.node.checks import CheckState

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from pinnace.cluster.doctor import Finding
    from pinnace.slurm.partitions import NodeClass

MARKS = {CheckState.OK: "✓", CheckState.WARNING: "!", CheckState.FAILED: "✗"}
FATAL = "clusters do not run"
# By the name of the check: what it is for, and what is so without it.
NEEDS = {
    "user namespaces": ("a node is a set of namespaces", FATAL),
    "subordinate ids": ("containers with several users", "all containers run as the user"),
    "nft": ("`nft`: the network inside a node", FATAL),
    "/dev/net/tun": ("the network between nodes", FATAL),
    "scratch": ("containers and images, on a disk of the host", FATAL),
    "home": ("clusters, components and images, the same on all hosts", "clusters of several nodes do not run"),
    "file watches": ("the kubelet and containerd", "fewer nodes of a user on a host at a time"),
    "node": ("all of it together, tried", FATAL),
    "overlayfs": ("images", FATAL),
    "native sockets": ("TCP of pods at the speed of the hosts", "it is slower"),
    "cgroups": ("limits of containers, kept by the kernel", "they are kept less exactly, by pinnace"),
    "devices": ("GPUs in pods", "pods have no GPU"),
    "clock": ("certificates", "clusters do not start where clocks differ by more than a day"),
    "network": ("links between nodes, the API", "set a range with `ports`, a device with `interface`"),
    "login access": ("kubectl on login nodes", "it goes through Slurm: slower, and nothing to do"),
}


@dataclass(frozen=True, kw_only=True)
class ClassFindings:
    """What was found on one node of a class; empty if none was asked."""

    nodes: NodeClass
    asked: str
    findings: tuple[Finding, ...]

    @property
    def works(self) -> bool:
        return bool(self.findings) and not any(one.check.state is CheckState.FAILED for one in self.findings)


def page(partition: str, classes: Sequence[ClassFindings], *, host: str, now: dt.datetime) -> str:
    """The whole page."""
    fit = sum(one.nodes.count for one in classes if one.works)
    total = sum(one.nodes.count for one in classes)
    parts = [
        f"# pinnace on the partition {partition}",
        "pinnace runs Kubernetes clusters inside Slurm jobs of ordinary users. Nothing is installed on the hosts, no "
        "part of it is setuid or runs as root, and all processes end with the job.",
        f"Made by `pinnace doctor --partition {partition} --all` (version {__version__}) on {host}, "
        f"{now:%Y-%m-%d %H:%M} UTC. One node of each kind was asked.",
        f"**{fit} of {total} nodes can run clusters.**",
        "## Kinds of nodes",
        _table(("kind", "nodes", "CPUs", "memory (MiB)", "GRES", "asked", "clusters"), _class_rows(classes)),
        "## What is needed, and what is there",
        _table(("needed", "for", "without it", *(f"kind {n}" for n, _ in enumerate(classes, 1))), _need_rows(classes)),
        "## What we ask for",
        "\n".join(f"{n}. {wish}" for n, wish in enumerate(wishes(classes), 1)) or "Nothing: all is there.",
        "## What helps your users",
        "`/etc/pinnace.toml` holds defaults for all of them: partition, account, ports that the firewall lets through "
        "between nodes, the network device, the scratch directory. `docs/site.md` of pinnace says more.",
    ]
    return "\n\n".join(parts) + "\n"


def _class_rows(classes: Sequence[ClassFindings]) -> list[tuple[str, ...]]:
    return [
        (str(number), one.nodes.names, str(one.nodes.cpus), str(one.nodes.memory), one.nodes.gres or "none",
         one.asked or "none is up", "run" if one.works else "do not run" if one.findings else "not known")
        for number, one in enumerate(classes, 1)
    ]  # fmt: skip


def _need_rows(classes: Sequence[ClassFindings]) -> list[tuple[str, ...]]:
    rows = []
    for name, (purpose, without) in NEEDS.items():
        cells = [_cell(name, one) for one in classes]
        if any(cells):
            rows.append((name, purpose, without, *(cell or "not asked" for cell in cells)))
    return rows


def _cell(name: str, one: ClassFindings) -> str:
    found = [finding.check for finding in one.findings if finding.check.name == name]
    return "; ".join(f"{MARKS[check.state]} {check.text}" for check in found)


def wishes(classes: Sequence[ClassFindings]) -> list[str]:
    """What has to be mended first, then what would be better; each once, with the kinds of nodes that want it."""
    found: dict[tuple[CheckState, str], list[str]] = {}
    for number, one in enumerate(classes, 1):
        for check in (finding.check for finding in one.findings):
            if check.hint:
                said = f"{MARKS[check.state]} **{check.name}**: {check.text}. {check.hint}"
                found.setdefault((check.state, said), []).append(str(number))
    order = (CheckState.FAILED, CheckState.WARNING)
    return [
        f"{said} (kind {', '.join(numbers)})"
        for state in order
        for (kind, said), numbers in found.items()
        if kind is state
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
