"""The kubelet's configuration, with and without cgroups of the node's own."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

import pytest

from pinnace.network.addresses import Ranges
from pinnace.node.services.kubelet import kubelet_argv, kubelet_config
from pinnace.spec import Allocation, ClusterSpec, NodeSpec

RANGES = Ranges(
    nodes=IPv4Network("10.42.0.0/16"), pods=IPv4Network("10.244.0.0/16"), services=IPv4Network("10.96.0.0/16")
)
CLUSTER = ClusterSpec(name="c", directory=Path("/c"), ranges=RANGES, binaries={"kubelet": "/bin/kubelet"})
NODE = NodeSpec(
    cluster=CLUSTER, index=1, name="n1", scratch=Path("/tmp/n1"), allocation=Allocation(), labels={"a": "b"}
)


@pytest.mark.parametrize(("cgroups", "enforced"), [(True, ["pods"]), (False, [])])
def test_the_kubelet_makes_cgroups_where_it_can(cgroups: bool, enforced: list[str]) -> None:
    config = kubelet_config(NODE, resolv_conf="", system_reserved={}, file_system="ext4", cgroups=cgroups)
    assert (config["cgroupsPerQOS"], config["enforceNodeAllocatable"]) == (cgroups, enforced)
    assert config["cpuCFSQuota"]


def test_a_node_says_whether_its_containers_have_cgroups() -> None:
    assert "--node-labels=a=b" in kubelet_argv(NODE, "config")
    assert "--node-labels=a=b,pinnace.dev/cgroups=true" in kubelet_argv(NODE, "config", cgroups=True)
