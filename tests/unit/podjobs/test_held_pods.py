"""Pods that wait for the end of the pod before them."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

from pinnace.podjobs import held_pods
from pinnace.podjobs.held_pods import HeldPods

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def container(uid: str, kind: str = "container") -> dict[str, Any]:
    return {"annotations": {"io.kubernetes.cri.sandbox-uid": uid, "io.kubernetes.cri.container-type": kind}}


def seconds_held(config: dict[str, Any], kubelet: Path) -> float:
    """That the start of a container waits which has just been created."""
    bundle = kubelet / "bundle"
    shutil.rmtree(bundle, ignore_errors=True)
    bundle.mkdir(parents=True)
    held_pods.mark(config, bundle, kubelet)
    begin = time.monotonic()
    held_pods.wait(bundle, kubelet)
    return time.monotonic() - begin


def test_a_container_of_a_held_pod_is_started_when_it_is_released(tmp_path: Path) -> None:
    held = HeldPods(tmp_path / "kubelet")
    held.hold("a")
    timer = threading.Timer(0.3, held.release, ["a"])
    begin = time.monotonic()
    timer.start()
    seconds_held(container("a"), tmp_path / "kubelet")
    assert time.monotonic() - begin >= 0.3
    timer.join()


def test_a_container_is_started_when_those_before_it_have_ended(tmp_path: Path) -> None:
    """The pod runner would hear of it later, and is not waited for."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as before:
        assert before.stdin
        (tmp_path / "first").mkdir()
        (tmp_path / "first" / "init.pid").write_text(str(before.pid))
        HeldPods(tmp_path).hold("a", after=["first", "gone"])
        timer = threading.Timer(0.3, before.stdin.close)
        begin = time.monotonic()
        timer.start()
        seconds_held(container("a"), tmp_path)
        assert 0.3 <= time.monotonic() - begin < 30  # seen while nobody has waited for the process
        timer.join()


def test_no_other_container_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_pods, "HOLD_LIMIT", 5.0)
    HeldPods(tmp_path).hold("a")
    for config in (container("b"), container("a", "sandbox"), container("../a"), container(""), {}):
        assert seconds_held(config, tmp_path) < 1


def test_nobody_waits_for_a_runner_that_was_started_again(tmp_path: Path) -> None:
    held = HeldPods(tmp_path)
    held.hold("a")
    held.clear()
    held.release("a")
    assert seconds_held(container("a"), tmp_path) < 1


def test_a_kubelet_would_give_up_before_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_pods, "HOLD_LIMIT", 0.1)
    HeldPods(tmp_path).hold("a")
    assert 0.1 <= seconds_held(container("a"), tmp_path) < 2
