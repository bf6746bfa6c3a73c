"""The checks, tried on this machine where that is possible."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pinnace.devices import offering
from pinnace.devices.gpu import Gpu
from pinnace.errors import NodeError
from pinnace.node import checks, requirements
from pinnace.node.checks import CheckState
from pinnace.sandbox import cgroups
from pinnace.sandbox.linux import CLONE_NEWUSER, unshare
from pinnace.spec import CLOCK_SKEW, LIFE, Device, DeviceOffer, ServiceRecord, ServiceState

if TYPE_CHECKING:
    from collections.abc import Callable

DAY = 86400.0


@pytest.mark.parametrize(
    ("skew", "state", "said"),
    [
        (0.4, CheckState.OK, "within 60 s"),
        (-59.0, CheckState.OK, "within 60 s"),
        (300.0, CheckState.WARNING, "5 minutes ahead"),
        (-5 * 3600.0, CheckState.WARNING, "5 hours behind"),
        (-CLOCK_SKEW - 3600, CheckState.FAILED, "25 hours behind"),
        (LIFE + DAY, CheckState.FAILED, "401 days ahead"),
    ],
)
def test_two_clocks_are_compared(skew: float, state: CheckState, said: str) -> None:
    check = checks.compared_clock(skew)
    assert check.state is state
    assert said in check.text


def test_a_home_is_shared_if_the_other_hosts_file_is_there(tmp_path: Path) -> None:
    (tmp_path / ".seen-login-1").touch()
    *_, same = checks.home(tmp_path, ".seen-login-1")
    assert same.state is not CheckState.FAILED
    assert "the same on all hosts" in same.text
    (other,) = checks.home(tmp_path, ".seen-login-2")
    assert other.state is CheckState.FAILED
    assert "is not the same directory as on login" in other.text
    assert "PINNACE_HOME" in other.hint


def test_a_home_that_is_not_there_is_named(tmp_path: Path) -> None:
    (check,) = checks.home(tmp_path / "missing")
    assert (check.state, check.name) == (CheckState.FAILED, "home")
    assert "No such file" in check.text


def test_scratch_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    assert checks.scratch_space(tmp_path / "missing").state is CheckState.FAILED
    assert checks.scratch_space(Path("/proc")).state is CheckState.FAILED


def test_a_missing_nft_comes_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    check = checks.nft()
    assert (check.state, check.text) == (CheckState.FAILED, "this host has none")
    assert "nftables" in check.hint


def with_few_watches(work: Callable[[], object]) -> str:
    """What this says, or raises, in a user namespace where the limit is lowered, without anybody else noticing."""
    readable, writable = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            unshare(CLONE_NEWUSER)
            Path("/proc/sys/user/max_inotify_instances").write_text("4")
            os.write(writable, str(work()).encode())
        except NodeError as error:
            os.write(writable, error.hint.encode())
        finally:
            os._exit(0)
    os.close(writable)
    os.waitpid(pid, 0)
    with os.fdopen(readable) as told:
        return told.read()


def test_file_watches_that_are_taken_are_named() -> None:
    assert checks.watches().state is CheckState.OK
    assert "a node needs 9 inotify instances" in with_few_watches(lambda: checks.watches().text)
    assert "fs.inotify.max_user_instances" in with_few_watches(requirements.require_watches)


@pytest.mark.parametrize(
    ("name", "restarts", "age", "named"),
    [
        ("containerd", 2, 10.0, True),
        ("kubelet", 5, 100.0, True),
        ("containerd", 1, 10.0, False),
        ("coredns", 5, 10.0, False),
        ("containerd", 2, 1000.0, False),
    ],
)
def test_file_watches_that_others_took_meanwhile_are_named_while_a_node_starts(
    name: str, restarts: int, age: float, named: bool
) -> None:
    links = ServiceRecord(name="links", state=ServiceState.RUNNING)
    services = [links, ServiceRecord(name=name, state=ServiceState.RESTARTING, restarts=restarts)]
    said = with_few_watches(partial(requirements.require_watches_while_starting, services, age))
    assert ("fs.inotify.max_user_instances" in said) is named


def test_without_a_delegated_cgroup_it_is_said_how_limits_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "cgroup_of", lambda *_: None)
    made, check = checks.delegated_cgroup(tmp_path)
    assert made is None
    assert check.state is CheckState.OK
    assert check.text == "this host has no cgroup v2: limits are kept by polling memory and by CPU affinity"


def test_a_delegated_cgroup_is_shown_with_its_controllers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    monkeypatch.setattr(cgroups, "set_up", lambda directory: directory)
    assert checks.delegated_cgroup(tmp_path) == (tmp_path, checks.ok("cgroups", "delegated (cpu, memory, pids)"))


JOB = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n1", "SLURM_STEP_GPUS": "0"}
GPU = Device(resource="nvidia.com/gpu", id="GPU-1", files=("/dev/null",))
LIBRARY = {"nvidia.com/gpu": {"/usr/local/nvidia/lib64/libcuda.so.1": "/lib/libcuda.so.535"}}


@pytest.mark.parametrize(
    ("offer", "state", "said"),
    [
        (DeviceOffer(), CheckState.WARNING, "Slurm gave GPU 0 to this job, and none of them can be used"),
        (DeviceOffer(devices=(GPU,)), CheckState.WARNING, "would lack the driver's libraries"),
        (DeviceOffer(devices=(GPU,), mounts=LIBRARY), CheckState.OK, "1 NVIDIA GPU, for this job: GPU-1"),
    ],
)
def test_gpus_of_a_job(monkeypatch: pytest.MonkeyPatch, offer: DeviceOffer, state: CheckState, said: str) -> None:
    found = offering.Maker(name="NVIDIA", domain="nvidia.com/", gpus=[Gpu(number=0, file="/dev/null", files=())])
    monkeypatch.setattr(offering, "makers", lambda _host: [found])
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    check = checks.devices(offer)
    assert check.state is state
    assert said in check.text


def test_gpus_that_are_not_the_jobs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = offering.Maker(name="AMD", domain="amd.com/", gpus=[Gpu(number=0, file="", files=())] * 2)
    monkeypatch.setattr(offering, "makers", lambda _host: [found])
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    check = checks.devices(DeviceOffer())
    assert check.state is CheckState.OK
    assert check.text == "2 AMD GPUs, none of them for this job (ask for them, as with --gres=gpu:1)"
