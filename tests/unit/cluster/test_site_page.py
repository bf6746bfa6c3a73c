"""The page for administrators: every kind of nodes, what is wrong first, nothing twice."""

from __future__ import annotations

import datetime as dt

from pinnace.cluster.doctor import Finding
from pinnace.cluster.site_page import NEEDS, ClassFindings, page, wishes
from pinnace.node import checks
from pinnace.slurm.partitions import NodeClass, parse_node_classes

SINFO = """\
n1|8|8000|(null)|idle
n2|8|8000|(null)|down*
n3|64|256000|gpu:a100:4(S:0-1)|allocated
n4|64|256000|gpu:a100:4(S:0-1)|mixed
n5|32|128000|(null)|drained
"""
NOW = dt.datetime(2026, 11, 17, 12, tzinfo=dt.UTC)


def findings(host: str, *found: checks.Check) -> tuple[Finding, ...]:
    return tuple(Finding(host=host, check=check) for check in found)


def test_nodes_that_are_alike_are_one_kind_and_idle_ones_are_asked_first() -> None:
    first, gpus, drained = parse_node_classes(SINFO)
    assert (first.nodes, first.usable) == (("n1", "n2"), ("n1",))
    assert (gpus.usable, gpus.gres) == (("n4", "n3"), "gpu:a100:4")
    assert drained.usable == ()


def test_many_nodes_are_counted_and_not_all_named() -> None:
    (kind,) = parse_node_classes("".join(f"n{number}|8|8000|(null)|idle\n" for number in range(9)))
    assert kind.names == "n0, n1, n2, n3, … (9)"


def test_the_page() -> None:
    tun = checks.failed("/dev/net/tun", "No such file", "Ask for the module.")
    ids = checks.warning("subordinate ids", "none", "Ask for ids.")
    kind = NodeClass(nodes=("n1", "n2"), usable=("n1",), cpus=8, memory=8000)
    other = NodeClass(nodes=("n3",), usable=("n3",), cpus=64, memory=256000, gres="gpu:4")
    idle = NodeClass(nodes=("n5",), usable=(), cpus=1, memory=1)
    classes = [
        ClassFindings(nodes=kind, asked="n1", findings=findings("n1", ids, checks.ok("/dev/net/tun", "can be opened"))),
        ClassFindings(nodes=other, asked="n3", findings=findings("n3", ids, tun)),
        ClassFindings(nodes=idle, asked="", findings=()),
    ]
    text = page("main", classes, host="login", now=NOW)
    assert "**2 of 4 nodes can run clusters.**" in text
    assert "| 3 | n5 | 1 | 1 | none | none is up | not known |" in text
    assert "| clusters do not run | ✓ can be opened | ✗ No such file | not asked |" in text
    assert wishes(classes) == [
        "✗ **/dev/net/tun**: No such file. Ask for the module. (kind 2)",
        "! **subordinate ids**: none. Ask for ids. (kind 1, 2)",
    ]


def test_every_check_of_a_host_has_a_line() -> None:
    made = {"user namespaces", "subordinate ids", "nft", "/dev/net/tun", "scratch", "file watches", "native sockets"}
    assert made | {"cgroups"} <= set(NEEDS)
