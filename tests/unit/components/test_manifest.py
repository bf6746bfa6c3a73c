from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pinnace.components.manifest import architecture, manifest, required, select
from pinnace.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from pinnace.components.manifest import Component

REQUIRED = {
    "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl", "etcd",
    "coredns", "containerd", "containerd-shim-runc-v2", "ctr", "runc", "ptp", "host-local", "portmap",
    "registry", "metrics-server", "pause",
}  # fmt: skip


OPTIONAL = {"kwok"}


def test_every_upstream_binary_is_in_the_manifest() -> None:
    assert {binary for component in required() for binary in component.binaries} == REQUIRED
    assert {binary for component in manifest().values() for binary in component.binaries} == REQUIRED | OPTIONAL


@pytest.mark.parametrize("component", manifest().values(), ids=lambda component: component.name)
def test_a_component_is_pinned(component: Component) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", component.version)
    assert component.optional or component.release.exists
    assert not (component.release.url and component.release.image)
    assert not component.release.url or component.release.url.startswith("https://")
    go_mod = (component.lock / "go.mod").read_text()
    go_sum = (component.lock / "go.sum").read_text()
    for package in component.build.packages.values():
        module = next(
            m for m in re.findall(r"^(?:require)?\s+(\S+) v", go_mod, re.MULTILINE) if f"{package}/".startswith(f"{m}/")
        )
        version = manifest()["kubernetes"].version if package.endswith(".c") else component.version
        assert f"{module} v{version} h1:" in go_sum, "the lock is of another version"


@pytest.mark.parametrize("component", manifest().values(), ids=lambda component: component.name)
def test_the_checksum_of_every_binary_without_c_is_pinned(component: Component) -> None:
    if component.build.needs_c:
        return  # its bytes depend on the C compiler
    sums = (component.lock / "SHA256SUMS").read_text()
    for binary in component.binaries:
        assert re.search(rf"^[0-9a-f]{{64}}  build/go[\d.]+/amd64/{re.escape(binary)}$", sums, re.MULTILINE), binary


def test_a_binary_stands_for_its_component() -> None:
    assert [component.name for component in select(("ctr", "kubelet"))] == ["kubernetes", "containerd"]


def test_an_optional_component_is_selected_by_its_name_alone() -> None:
    assert select(()) == required()
    assert [component.name for component in select(("kwok",))] == ["kwok"]
    assert not {component.name for component in required()} & {"kwok"}


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no component called 'kubelett'") as caught:
        select(("kubelett",))
    assert "kubelet" in caught.value.hint


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(UsageError, match="riscv64"):
        architecture("riscv64")


def test_the_fingerprint_changes_with_the_lock(tmp_path: Path) -> None:
    component = manifest()["etcd"]
    for name in ("go.mod", "go.sum"):
        (tmp_path / name).write_bytes((component.lock / name).read_bytes())
    same = replace(component, lock=tmp_path)
    assert same.fingerprint == component.fingerprint
    with (tmp_path / "go.sum").open("a") as file:
        file.write("more\n")
    assert same.fingerprint != component.fingerprint
