"""What the first process of a node does by itself."""

from __future__ import annotations

import errno
import json
import os
import time
from typing import TYPE_CHECKING

from pinnace.node import init
from pinnace.node.limits.affinity import CpuPool
from pinnace.node.limits.limiter import Limiter
from pinnace.node.services.runc_wrapper import DEFAULT_HANDLER, Edits
from pinnace.podjobs import held_pods
from pinnace.podjobs.held_pods import HeldPods

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from pinnace.node.services.host_network import Host

OWN = frozenset(os.sched_getaffinity(0))


def no_host() -> Host:
    raise AssertionError


def test_a_node_without_processes_to_be_had_does_not_wait_for_a_pod_that_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of the node would wait. Others' containers are edited as ever."""

    def no_process(_work: Callable[[], None]) -> int:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(init, "fork", no_process)
    monkeypatch.setattr(held_pods, "KUBELET", tmp_path / "kubelet")
    HeldPods(tmp_path / "kubelet").hold("a")
    limiter = Limiter(pool=CpuPool(available=OWN, permitted=OWN), tasks=tmp_path, run_directory=tmp_path)
    edits = Edits(launcher=None, host=no_host, notify="", limiter=limiter)

    def answered(uid: str) -> list[str]:
        annotations = {"io.kubernetes.cri.sandbox-uid": uid, "io.kubernetes.cri.container-type": "container"}
        bundle = tmp_path / uid
        bundle.mkdir()
        about = {"annotations": annotations, "linux": {}, "mounts": [], "process": {"user": {"uid": 0, "gid": 0}}}
        (bundle / "config.json").write_text(json.dumps(about))
        words = []
        for kind, file in (("create", bundle / "config.json"), ("start", bundle / "start")):
            os.mkfifo(f"{file}.answer")
            descriptor = os.open(f"{file}.answer", os.O_RDWR)
            init.Init._edit_bundle(f"{kind} {DEFAULT_HANDLER} {uid} {file}", edits)
            with os.fdopen(descriptor) as answer:
                words.append(answer.readline().strip())
        return words

    begin = time.monotonic()
    assert answered("a") == ["done", "done"]
    assert (tmp_path / "a" / held_pods.MARK).read_text() == "a"
    assert time.monotonic() - begin < 30
    assert answered("b") == ["done", "done"]
