from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

import pytest

from pinnace.controlplane.podsecurity import admission_configuration, class_name, restriction_objects
from pinnace.controlplane.processes import apiserver_argv
from pinnace.network.addresses import Ranges
from pinnace.node.services.kubelet import kubelet_config
from pinnace.spec import Allocation, ClusterSpec, NodeSpec, PodReference, Restriction

RANGES = Ranges.within(IPv4Network("10.128.0.0/16"))


def node(restriction: Restriction | None = None) -> NodeSpec:
    cluster = ClusterSpec(
        name="test",
        directory=Path("/cluster"),
        ranges=RANGES,
        binaries={"kube-apiserver": "/bin/kube-apiserver"},
        restriction=restriction,
    )
    pod = PodReference(namespace="default", name="one", uid="u")
    return NodeSpec(cluster=cluster, index=0, name="n1", scratch=Path("/x"), allocation=Allocation(), pod=pod)


def test_every_namespace_has_the_level_but_the_systems_own() -> None:
    plugin = admission_configuration(Restriction(level="baseline"))["plugins"][0]
    defaults = plugin["configuration"]["defaults"]
    assert {defaults[kind] for kind in ("enforce", "audit", "warn")} == {"baseline"}
    assert plugin["configuration"]["exemptions"] == {
        "usernames": [],
        "runtimeClasses": [],
        "namespaces": ["kube-system"],
    }


def test_the_api_server_of_a_restricted_cluster() -> None:
    plain, held = apiserver_argv(node()), apiserver_argv(node(), admission="/run/pinnace/admission.json")
    assert "--enable-admission-plugins=NodeRestriction" in plain
    assert "--enable-admission-plugins=NodeRestriction,DenyServiceExternalIPs,AlwaysPullImages" in held
    assert "--admission-control-config-file=/run/pinnace/admission.json" in held
    for argv in (plain, held):
        assert "--anonymous-auth=false" in argv
        assert "--authorization-mode=Node,RBAC" in argv


@pytest.mark.parametrize("restriction", [None, Restriction(level="restricted")])
def test_what_a_kubelet_does_not_offer(restriction: Restriction | None) -> None:
    config = kubelet_config(node(restriction), resolv_conf="", system_reserved={}, file_system="ext4")
    assert config["readOnlyPort"] == 0
    assert not config["authentication"]["anonymous"]["enabled"]
    assert not any(config[f"enable{what}Handler"] for what in ("Profiling", "DebugFlags", "SystemLog"))
    assert config["seccompDefault"] is (restriction is not None)


def test_pods_of_others_start_no_processes_of_the_host() -> None:
    assert node().has_ranks
    assert not node(Restriction(level="baseline")).has_ranks


def test_where_others_are_let_in_there_are_no_native_sockets() -> None:
    """A pod that is written to that end gets around what watches over them."""
    assert node().has_native_sockets
    assert not node(Restriction(level="baseline")).has_native_sockets


def test_a_class_for_each_directory() -> None:
    assert class_name("/data/Sets_1/x") == "host-data-sets-1-x"
    assert len(class_name("/" + "long/" * 100)) <= 200
    objects = restriction_objects(Restriction(level="restricted", host_paths=("/data",)))
    classes = [body for path, body in objects if path.endswith("storageclasses")]
    assert [(body["metadata"]["name"], body["parameters"], body["reclaimPolicy"]) for body in classes] == [
        ("host-data", {"path": "/data"}, "Retain")
    ]
