"""What a pod needs, by Kubernetes' rule."""

from __future__ import annotations

from decimal import Decimal

from pinnace.kube.resources import needs
from unit.podjobs.samples import container, pod


def test_containers_are_added_up() -> None:
    found = needs(pod(containers=[container("500m", "100Mi"), container("1", "1Gi")]))
    assert found == {"cpu": Decimal("1.5"), "memory": Decimal(1124 << 20)}


def test_of_memory_the_limit_counts_and_of_cpus_the_request() -> None:
    two = container("1", "1Gi", limit="2Gi")
    two["resources"]["limits"]["cpu"] = "4"
    assert needs(pod(containers=[two])) == {"cpu": Decimal(1), "memory": Decimal(2 << 30)}


def test_a_limit_alone_is_a_request() -> None:
    only = {"name": "main", "image": "x", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}
    assert needs(pod(containers=[only])) == {"cpu": Decimal(2), "memory": Decimal(1 << 30)}


def test_init_containers_run_one_after_the_other() -> None:
    found = needs(pod(initContainers=[container("4"), container("3")], containers=[container("1"), container("1")]))
    assert found["cpu"] == 4


def test_sidecars_run_beside_everything_that_comes_after_them() -> None:
    side = container("1", restartPolicy="Always")
    assert needs(pod(initContainers=[side, container("3")], containers=[container("1")]))["cpu"] == 4
    assert needs(pod(initContainers=[container("3"), side], containers=[container("1")]))["cpu"] == 3
    assert needs(pod(initContainers=[side], containers=[container("2")]))["cpu"] == 3


def test_the_overhead_of_a_runtime_class_is_added() -> None:
    found = needs(pod(containers=[container("1")], overhead={"cpu": "250m", "memory": "64Mi"}))
    assert found == {"cpu": Decimal("1.25"), "memory": Decimal(64 << 20)}


def test_what_the_pod_asks_for_as_a_whole_goes_before_its_containers() -> None:
    whole = {"requests": {"cpu": "3"}}
    assert needs(pod(containers=[container("1", "1Gi")], resources=whole)) == {
        "cpu": Decimal(3),
        "memory": Decimal(1 << 30),
    }
