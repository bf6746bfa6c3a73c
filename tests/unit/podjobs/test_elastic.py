"""How many nodes pods need, and of what shape."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pinnace.errors import UsageError
from pinnace.podjobs.elastic import (
    Elastic,
    Shape,
    busy_nodes,
    demand,
    gres_of_nodes,
    is_stuck,
    node_devices,
    pack,
    seconds_left,
    shape,
)
from pinnace.podjobs.settings import PodJobSettings
from pinnace.spec import Provisioning
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


def test_many_pods_that_fill_a_node_each_are_packed_in_no_time() -> None:
    """Not in the square of their number; the time limit of a test is what fails then."""
    assert pack([demand(asking("3"))] * 20_000, OFFER.amounts()) == 20_000
    assert pack([demand(asking("3"))] * 5_000 + [demand(asking("1"))] * 5_001, OFFER.amounts()) == 5_001


def test_what_fits_on_no_node_gets_none() -> None:
    assert pack([demand(asking("5"))], OFFER.amounts()) == 0


def test_the_shape_is_what_was_asked_for_or_what_the_partition_has() -> None:
    assert shape({}, OFFER, {}) == OFFER
    assert shape({"cpus-per-task": "2", "mem": "1G"}, OFFER, {}) == Shape(cpus=2, memory=1024)
    sizes = ("100", "100M", "2G", "1T", "2048K", "8GB", "0")
    assert [shape({"mem": text}, OFFER, {}).memory for text in sizes] == [
        100,
        100,
        2048,
        1 << 20,
        2,
        8192,
        OFFER.memory,
    ]


def with_gpus(number: int) -> dict[str, Any]:
    return pod(containers=[container("1", "1Gi", extended={"nvidia.com/gpu": str(number)})])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"gres": "gpu:2"}, {"nvidia.com/gpu": 2, "amd.com/gpu": 2}),
        ({"gres": "gpu"}, {"nvidia.com/gpu": 1}),
        ({"gres": "gpu:a100:2,fpga:1"}, {"nvidia.com/gpu": 2, "nvidia.com/a100": 2, "example.com/fpga": 1}),
        ({"gpus-per-node": "4"}, {"nvidia.com/gpu": 4}),
        ({"gpus-per-node": "a100:4"}, {"nvidia.com/a100": 4, "nvidia.com/gpu": 4}),
    ],
)
def test_the_devices_of_a_shape(options: dict[str, str | None], expected: dict[str, int]) -> None:
    gres = PodJobSettings(resources={"nvidia.com/a100": "gpu:a100", "example.com/fpga": "fpga"}).gres
    found = node_devices(options, gres)
    assert expected.items() <= found.items()
    assert found["rdma/hca"], "Slurm is not asked for it"
    if not expected:
        assert "nvidia.com/gpu" not in found


def test_pods_are_packed_by_their_devices_too() -> None:
    offer = shape({"gres": "gpu:2"}, OFFER, PodJobSettings().gres).amounts()
    assert pack([demand(with_gpus(1)) for _ in range(4)], offer) == 2
    assert pack([demand(with_gpus(3))], offer) == 0
    assert pack([demand(with_gpus(1))], OFFER.amounts()) == 0


def test_nodes_have_what_their_pods_ask_for() -> None:
    """Where the user's options name no devices. What no GRES is mapped to gets no node."""
    unknown = pod(containers=[container("1", "1Gi", extended={"example.com/unknown": "1"})])
    asked = [demand(body) for body in (with_gpus(1), with_gpus(2), with_gpus(1), asking("1"), unknown)]
    groups = gres_of_nodes(asked, PodJobSettings())
    assert {gres: len(group) for gres, group in groups.items()} == {"gpu:1": 2, "gpu:2": 1, "": 1}


@pytest.mark.parametrize("options", [{"mem": "much"}, {"cpus-per-task": "four"}])
def test_what_cannot_be_read_is_an_error_that_ends_no_provisioner(options: dict[str, str | None]) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        shape(options, OFFER, {})


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


def elastic(*, slurm: Any = None, options: tuple[str, ...] = ()) -> Elastic:
    spec = SimpleNamespace(provisioning=Provisioning(elastic=(0, 4), options=options), name="c", directory=Path("/c"))
    return Elastic(pod_api=lambda: Any, slurm=slurm, spec=spec, settings=PodJobSettings())  # type: ignore[arg-type,return-value]


def node(name: str, **offer: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"allocatable": {"cpu": "1"} | offer}}


def test_a_node_is_waited_for_until_it_has_told_of_its_devices() -> None:
    """Otherwise another would be submitted for the same pod."""
    keeper, gpu = elastic(), {"nvidia.com/gpu": "1"}
    assert keeper._offering(set(), [node("job-1")], 0.0) == {"job-1"}, "nobody wants any"
    assert keeper._offering({"nvidia.com/gpu"}, [node("job-1"), node("job-2", **gpu)], 1.0) == {"job-2"}
    assert keeper._offering({"nvidia.com/gpu"}, [node("job-1")], 9.0) == set()
    assert keeper._offering({"nvidia.com/gpu"}, [node("job-1")], 11.0) == {"job-1"}, "it has none"


def test_nodes_with_devices_are_asked_for_first_and_not_again_at_once_if_they_were_refused() -> None:
    keeper = elastic()
    demands = [demand(asking("1")), demand(with_gpus(1)), demand(with_gpus(9))]
    assert keeper._wanted(demands, OFFER, 0.0) == [{"gres": "gpu:1"}, {"gres": "gpu:9"}, {}]
    keeper.refused["gpu:9"] = 60.0
    assert keeper._wanted(demands, OFFER, 1.0) == [{"gres": "gpu:1"}, {}]
    assert {"gres": "gpu:9"} in keeper._wanted(demands, OFFER, 61.0)


def test_where_the_users_options_say_what_nodes_have_they_count() -> None:
    keeper = elastic(options=("--gres=gpu:2",))
    assert keeper._wanted([demand(with_gpus(1)) for _ in range(3)], OFFER, 0.0) == [{}, {}]
    assert keeper._wanted([demand(with_gpus(3))], OFFER, 0.0) == []
