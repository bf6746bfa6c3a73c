"""Limits, as they are read from what the kubelet asks the runtime for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pinnace.node.limits.container_limits import ContainerLimits, limits_in, limits_of, volumes_in_memory, whole_cpus

if TYPE_CHECKING:
    from pathlib import Path

GUARANTEED, BURSTABLE = -997, 3


def resources(memory: int = 64 << 20, quota: int = 200_000, shares: int = 2048) -> dict[str, Any]:
    return {"memory": {"limit": memory, "swap": memory}, "cpu": {"quota": quota, "period": 100_000, "shares": shares}}


@pytest.mark.parametrize(
    ("quota", "cpus"), [(100_000, 1), (100_001, 2), (2_000, 1), (250_000, 3), (-1, None), (0, None)]
)
def test_parts_of_a_cpu_are_rounded_up(quota: int, cpus: int | None) -> None:
    assert whole_cpus({"quota": quota, "period": 100_000}) == cpus


def test_no_limit() -> None:
    assert limits_of({}, 1000, 0, ()) == ContainerLimits()
    assert limits_of({"memory": {"limit": 0}, "cpu": {"shares": 2}}, 1000, 0, ()) == ContainerLimits()
    assert limits_of({"memory": {"limit": -1}, "cpu": {"quota": -1, "period": 100_000}}, 5, 0, ()) == ContainerLimits()


def test_a_guaranteed_pod_with_whole_cpus_is_recognized() -> None:
    assert limits_of(resources(), GUARANTEED, 0, ()).exclusive
    assert limits_of(resources(), 500, 500, ()).exclusive, "raised by containerd to what we have"
    assert not limits_of(resources(), BURSTABLE, 0, ()).exclusive
    assert not limits_of(resources(quota=150_000, shares=1536), GUARANTEED, 0, ()).exclusive, "parts of a CPU"
    assert not limits_of(resources(shares=1024), GUARANTEED, 0, ()).exclusive, "requests less than its limit"
    assert not limits_of(resources(memory=0), GUARANTEED, 0, ()).exclusive


def test_limits_are_kept_in_the_bundle(tmp_path: Path) -> None:
    assert ContainerLimits.read(tmp_path) is None
    limits = ContainerLimits(memory=5, cpus=2, exclusive=True, tmpfs=("/a b",))
    limits.write(tmp_path)
    assert ContainerLimits.read(tmp_path) == limits


def test_only_volumes_in_memory_that_can_be_written_count(tmp_path: Path) -> None:
    def bind(source: str, *options: str) -> dict[str, Any]:
        return {"type": "bind", "source": source, "destination": "/there", "options": ["rbind", *options]}

    shm = "/run/containerd/io.containerd.grpc.v1.cri/sandboxes/5f/shm"
    volumes = tmp_path / "kubernetes.io~empty-dir"
    (volumes / "disk").mkdir(parents=True)
    (volumes / "memory").symlink_to("/dev/shm")  # another file system than that of the directory
    mounts = [
        bind(shm, "rw"),
        bind("/dev/shm", "rw"),  # hostIPC
        bind(str(volumes / "disk"), "rw"),
        bind(str(volumes / "gone"), "rw"),
        bind(str(volumes / "memory"), "rw"),
        bind(str(volumes / "memory"), "ro"),
        {"type": "tmpfs", "source": "tmpfs", "destination": "/dev"},
    ]
    assert volumes_in_memory({"mounts": mounts}) == (shm, str(volumes / "memory"))


def test_the_limits_of_a_bundle() -> None:
    config = {"linux": {"resources": resources()}, "process": {"oomScoreAdj": 985}, "mounts": []}
    assert limits_in(config) == ContainerLimits(memory=64 << 20, cpus=2)
    assert limits_in({"linux": {}, "process": {}}) == ContainerLimits()
