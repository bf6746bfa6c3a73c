"""Upstream's simulator of nodes, ``sigs.k8s.io/kwok``: built and kept as the components are, and started on a host.

A node that it simulates is an object that it keeps ready, and a pod there runs when it has been bound. All else, the
API, etcd, the controllers and the scheduler, does the work that it would do for real nodes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks.growth.objects import ANNOTATION, FAKE
from pinnace.components import build as building
from pinnace.components.fetch import fetch_one
from pinnace.components.manifest import architecture, manifest
from pinnace.components.store import ComponentState, ComponentStore, Origin, user_root
from testbed.images.golang import GoFile, Lock, add_from_modules

if TYPE_CHECKING:
    from pathlib import Path

    from pinnace.components.events import Reporter
    from pinnace.components.manifest import Component

__all__ = ["ensure_kwok", "kwok_argv", "stages"]

KWOK = manifest()["kwok"]
LOCK = KWOK.lock
MODULE = "sigs.k8s.io/kwok"
# How its objects change, in files of its module: nodes renew their leases, and pods run when they have been bound.
STAGES = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-complete.yaml",
    "pod/fast/pod-delete.yaml",
)


def ensure_kwok(reporter: Reporter) -> Path:
    """The program, built if it is not in the store."""
    arch = architecture()
    store = ComponentStore(user_root(), arch)

    def source(component: Component, target: Path) -> tuple[Origin, str]:
        return Origin.BUILD, building.build(component, arch, target, reporter)

    if store.inspect(KWOK).state is not ComponentState.INSTALLED:
        fetch_one(KWOK, store, source, reporter)
    return store.directory(KWOK) / "kwok"


# Kubelets work side by side: with the simulator's default of four at a time, leases run out when the API is slow.
PARALLELISM = 64
OPTIONS = {
    "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
    "kind": "KwokConfiguration",
    "options": {
        f"{what}Parallelism": PARALLELISM for what in ("nodeLease", "nodePlayStage", "podPlayStage", "podsOnNodeSync")
    },
}


def stages() -> str:
    """Its configuration: how much it does at a time, and the stages, from files of the module that it is built from."""
    lock = Lock(go_mod=(LOCK / "go.mod").read_text(), go_sum=(LOCK / "go.sum").read_text())
    files = [
        add_from_modules(GoFile(path="stage", module=MODULE, source=f"kustomize/stage/{name}", lock=lock))
        for name in STAGES
    ]
    texts = [str(file.content, "utf-8") for file in files if isinstance(file.content, bytes)]
    return "\n---\n".join([json.dumps(OPTIONS), *texts])


def kwok_argv(program: str, kubeconfig: str, configuration: str) -> list[str]:
    """Simulate the nodes with the annotation. The address of pods is not of the cluster: no packet ever goes there."""
    return [
        program,
        f"--kubeconfig={kubeconfig}",
        f"--config={configuration}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={ANNOTATION}={FAKE}",
        "--cidr=198.18.0.1/15",  # RFC 2544: for benchmarks
        "--node-ip=198.18.0.1",
        "--node-lease-duration-seconds=40",
        "--node-port=0",  # it does not listen
    ]
