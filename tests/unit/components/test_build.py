"""Builds with the real Go toolchain, from the real module proxy."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pinnace.components.build import build_argv, build_environment
from pinnace.components.manifest import architecture, manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unit.components.conftest import Pinnace

ARCH = architecture()
SMALL = "cni-plugins"


def test_the_version_is_stamped_and_the_path_is_not() -> None:
    argv = build_argv(manifest()["kubernetes"], "kubectl", Path("/out"))
    assert argv[:2] == ["go", "build"]
    assert argv[-1] == "k8s.io/kubernetes/cmd/kubectl"
    assert "-trimpath" in argv
    assert "-mod=readonly" in argv
    ldflags = next(word for word in argv if word.startswith("-ldflags="))
    assert "-X k8s.io/component-base/version.gitVersion=v1.36.3" in ldflags
    assert "-X k8s.io/component-base/version.gitMinor=36" in ldflags


def test_settings_of_the_user_that_change_the_result_are_dropped() -> None:
    mine = {"GOFLAGS": "-race", "GOEXPERIMENT": "x", "CGO_CFLAGS": "-O0", "GOPROXY": "https://p", "PATH": "/bin"}
    environment = build_environment(manifest()["etcd"], "amd64", mine)
    assert environment["GOFLAGS"] == ""
    assert environment["CGO_ENABLED"] == "0"
    assert environment["GOPROXY"] == "https://p"
    assert not {"GOEXPERIMENT", "CGO_CFLAGS"} & environment.keys()
    assert build_environment(manifest()["runc"], "amd64", mine)["CGO_ENABLED"] == "1"


def test_an_old_go_is_told_apart(pinnace: Pinnace, tmp_path: Path) -> None:
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho 'go: go.mod requires go >= 1.26.0 (running go 1.19)' >&2\nexit 1\n")
    go.chmod(0o755)
    result = pinnace("fetch", "--from", "build", SMALL, code=1, PATH=f"{tmp_path}:/usr/bin:/bin")
    assert "this Go cannot build cni-plugins" in result.stderr
    assert "requires go >= 1.26.0" in result.stderr
    assert "Install Go 1.26.0 or newer" in result.stderr


def test_a_missing_c_library_is_named(pinnace: Pinnace) -> None:
    result = pinnace("fetch", "--from", "build", "runc", code=1, PKG_CONFIG_LIBDIR="/nonexistent")
    assert "building runc 1.5.2 from source needs libseccomp" in result.stderr
    assert "libseccomp-dev" in result.stderr


@pytest.mark.build
def test_every_real_binary_says_its_version(real_store: Path) -> None:
    def said(component: str, *argv: str) -> str:
        binary = real_store / component / manifest()[component].version / ARCH / argv[0]
        result = subprocess.run([binary, *argv[1:]], capture_output=True, text=True, check=True, timeout=60)
        return result.stdout + result.stderr

    kubectl = json.loads(said("kubernetes", "kubectl", "version", "--client", "-o", "json"))
    assert kubectl["clientVersion"]["gitVersion"] == "v1.36.3"
    assert kubectl["clientVersion"]["minor"] == "36"
    for binary in manifest()["kubernetes"].binaries[:-1]:
        assert said("kubernetes", binary, "--version") == "Kubernetes v1.36.3\n"
    assert "etcd Version: 3.7.3" in said("etcd", "etcd", "--version")
    assert "CoreDNS-1.14.7" in said("coredns", "coredns", "-version")
    assert " v2.4.2" in said("containerd", "containerd", "--version")
    assert "Version:  v2.4.2" in said("containerd", "containerd-shim-runc-v2", "-v")
    assert " v2.4.2" in said("containerd", "ctr", "--version")
    assert "runc version 1.5.2" in said("runc", "runc", "--version")
    assert "libseccomp:" in said("runc", "runc", "--version")
    assert "v1.9.1" in said("cni-plugins", "ptp", "--version")
    assert " v3.1.2" in said("distribution", "registry", "--version")
    assert "v0.9.0" in said("metrics-server", "metrics-server", "--version")


@pytest.mark.build
@pytest.mark.timeout(900)
def test_a_build_from_empty_caches_gives_the_pinned_bytes(pinnace: Pinnace, tmp_path: Path) -> None:
    """Another GOCACHE, another directory, the same bytes: `go build` itself is reproducible, and so are our flags."""
    result = pinnace("fetch", "--from", "build", SMALL, timeout=840, GOCACHE=str(tmp_path / "cache"))
    assert "building ptp" in result.stderr
    row = json.loads(pinnace("fetch", "--list", SMALL, "-o", "json").stdout)[0]
    assert row["origin"] == "build"
    pins = (manifest()[SMALL].lock / "SHA256SUMS").read_text()
    if f"build/{row['detail']}/{ARCH}/" in pins:
        for binary in row["binaries"]:
            assert f"{binary['sha256']}  build/{row['detail']}/{ARCH}/{binary['name']}" in pins
    shutil.rmtree(tmp_path / "cache")


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def read_proc(pid: int, file: str) -> bytes:
    """Nothing, if the process has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def wait_for_go(process: subprocess.Popen[str]) -> int:
    """The pid of the ``go build`` below a running fetch."""
    for _ in range(600):
        for child in children_of(process.pid):
            if b"build" in read_proc(child, "cmdline"):
                return child
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.05)
    raise AssertionError("go build did not start")


@pytest.mark.build
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_build_leaves_nothing_running_and_the_next_one_works(
    pinnace: Pinnace, tmp_path: Path, how: signal.Signals
) -> None:
    with pinnace.popen("fetch", "--from", "build", SMALL, GOCACHE=str(tmp_path / "cold")) as process:
        go = wait_for_go(process)
        process.send_signal(how)
        code = process.wait(timeout=30)
    assert code == (-how if how is signal.SIGKILL else 128 + how)
    for _ in range(100):
        if not (status := read_proc(go, "status")) or b"\nState:\tZ" in status:
            break
        time.sleep(0.05)
    else:
        raise AssertionError("go is still running")
    assert json.loads(pinnace("fetch", "--list", SMALL, "-o", "json").stdout)[0]["state"] == "missing"
    pinnace("fetch", "--from", "build", SMALL, timeout=280)
    assert not list((pinnace.home / "components" / SMALL).glob(".staging-*"))
    shutil.rmtree(tmp_path / "cold", ignore_errors=True)


@pytest.mark.build
def test_two_at_once_do_the_work_once(pinnace: Pinnace) -> None:
    with ExitStack() as stack:
        both = [stack.enter_context(pinnace.popen("fetch", "--from", "build", SMALL)) for _ in range(2)]
        output = [process.communicate(timeout=280)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], output
    assert sum("building ptp" in text for text in output) == 1, output
    assert sum("waiting for process" in text or "meanwhile" in text for text in output) == 1, output


@contextmanager
def small_filesystem(path: Path, size: str) -> Iterator[Path]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], check=True, timeout=30)
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True, timeout=30)


@pytest.mark.bed
@pytest.mark.build
def test_a_full_store_says_so_and_stays_clean(pinnace: Pinnace, tmp_path: Path) -> None:
    assert os.geteuid() == 0, "this test mounts a small file system"
    with small_filesystem(tmp_path / "full", "6m") as full:
        result = pinnace("fetch", "--from", "build", SMALL, code=1, timeout=280, PINNACE_HOME=str(full))
        assert "no space left" in result.stderr
        assert "PINNACE_HOME" in result.stderr or "GOCACHE" in result.stderr
        assert [path.name for path in (full / "components" / SMALL).iterdir()] == [".lock"]


@pytest.mark.bed
@pytest.mark.build
def test_no_room_for_the_build_is_said_before_it_starts(pinnace: Pinnace, tmp_path: Path) -> None:
    with small_filesystem(tmp_path / "full", "50m") as full:
        result = pinnace("fetch", "--from", "build", "kubernetes", code=1, GOCACHE=str(full))
        assert "building kubernetes 1.36.3 needs 5 GiB for Go's caches" in result.stderr
        assert "GOCACHE" in result.stderr
        assert "building kube-apiserver" not in result.stderr
