"""How many nodes pods need, and of what shape."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from pinnace.errors import UsageError
from pinnace.podjobs.elastic import Shape, busy_nodes, demand, is_stuck, pack, seconds_left, shape
from unit.podjobs.samples import container, job, pod

OFFER = Shape(cpus=4, memory=4096)


def asking(cpu: str, memory: str = "1Gi") -> dict[str, Any]:
    return pod(containers=[container(cpu, memory)])


def test_pods_are_packed() -> None:
    assert pack([], OFFER.amounts()) == 0
    assert pack([demand(asking("1")) for _ in range(4)], OFFER.amounts()) == 1
    assert pack([demand(asking("1")) for _ in range(5)], OFFER.amounts()) == 2
    assert pack([demand(asking(cpu)) for cpu in ("1", "3", "1", "3")], OFFER.amounts()) == 2
    assert pack([demand(asking("1", "3Gi")) for _ in range(3)], OFFER.amounts()) == 3


def test_what_fits_on_no_node_gets_none() -> None:
    assert pack([demand(asking("5"))], OFFER.amounts()) == 0


def test_the_shape_is_what_was_asked_for_or_what_the_partition_has() -> None:
    assert shape({}, OFFER) == OFFER
    assert shape({"cpus-per-task": "2", "mem": "1G"}, OFFER) == Shape(cpus=2, memory=1024)
    sizes = ("100", "100M", "2G", "1T", "2048K", "8GB", "0")
    assert [shape({"mem": text}, OFFER).memory for text in sizes] == [100, 100, 2048, 1 << 20, 2, 8192, OFFER.memory]


@pytest.mark.parametrize("options", [{"mem": "much"}, {"cpus-per-task": "four"}])
def test_what_cannot_be_read_is_an_error_that_ends_no_provisioner(options: dict[str, str | None]) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        shape(options, OFFER)


def test_only_pods_that_found_no_node_are_stuck() -> None:
    body = pod(schedulerName="default-scheduler")
    assert not is_stuck(body)
    body["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    assert is_stuck(body)
    assert not is_stuck(body | {"spec": body["spec"] | {"nodeName": "n1"}})
    assert not is_stuck(body | {"spec": body["spec"] | {"schedulerName": "pinnace"}})


def test_daemons_and_the_dead_keep_no_node() -> None:
    daemon = pod("d", node="job-1", phase="Running")
    daemon["metadata"]["ownerReferences"] = [{"kind": "DaemonSet"}]
    assert busy_nodes([daemon, pod("x", node="job-2", phase="Succeeded")]) == set()
    assert busy_nodes([pod("y", node="job-3", phase="Running")]) == {"job-3"}


@pytest.mark.parametrize(
    ("text", "value"),
    [("0:59", 59), ("10:00", 600), ("1:00:00", 3600), ("1-00:00:01", 86401), ("UNLIMITED", math.inf), ("", math.inf)],
)
def test_time_left(text: str, value: float) -> None:
    assert seconds_left(replace(job(1), time_left=text)) == value
