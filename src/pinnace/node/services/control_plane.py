"""The control plane beside its API server: what the first node of a cluster runs besides what every node does."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.controlplane import early_health, metrics, processes
from pinnace.controlplane.bootstrap import RETRY_INTERVAL, ROLES, bootstrap
from pinnace.kube.client import Api
from pinnace.node.readiness import after, listening, once
from pinnace.node.services import timer_slack
from pinnace.node.services.kubelet_pacing import held
from pinnace.node.supervisor import RestartPolicy
from pinnace.spec import METRICS_DELAY

if TYPE_CHECKING:
    from pinnace.node.init import Init
    from pinnace.spec import NodeSpec

# What the controller-manager reads before all else; the API server writes it when it serves.
AUTHENTICATION = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"


def wait_for_api(node: NodeSpec, authorizes: Path, healthy: Path) -> None:
    """Make the file ``authorizes`` when the API serves its clients, and ``healthy`` when it may be asked whether it is.

    All of this is in a process of its own, because the API server accepts connections long before it serves them, and
    init must not wait for it.
    """
    secrets, from_seed = node.cluster.secrets, bool(node.cluster.seed)
    controllers, admin = Api(secrets / "controller-manager.kubeconfig"), Api(secrets / "admin.kubeconfig")
    while not (controllers.healthy(AUTHENTICATION) and (from_seed or admin.healthy(ROLES))):
        time.sleep(RETRY_INTERVAL)
    authorizes.touch()
    while not admin.healthy(early_health.EARLY_HEALTH if from_seed else early_health.HEALTH):
        time.sleep(RETRY_INTERVAL)
    if from_seed:
        early_health.serve(admin, secrets, listening=healthy.touch)
    healthy.touch()


def add(init: Init) -> None:
    """Its services, and what is done once while they start."""
    node = init.node
    init.task("bootstrap", lambda: bootstrap(node))
    authorizes, healthy = init.run_directory / "api-authorizes", init.run_directory / "api-healthy"
    init.task("wait-for-api", lambda: wait_for_api(node, authorizes, healthy))
    served = init.timeline.ready("kube-apiserver", once(authorizes.exists))
    path = node.secret("controller-manager.kubeconfig")
    if node.cluster.seed:
        document = early_health.kubeconfig(json.loads(Path(path).read_text()))
        path = init.write("controller-manager.kubeconfig", json.dumps(document))
    controllers = processes.controller_manager_argv(node, path)
    # It asks once a second whether the API is healthy: it gets so far, and goes on when somebody answers.
    output = partial(held, ready=healthy.exists)
    init.service("kube-controller-manager", controllers, essential=True, waits_for=served, output=output)
    init.service("kube-scheduler", processes.scheduler_argv(node), essential=True, waits_for=served)
    corefile = init.write("Corefile", processes.corefile(node, forward=bool(init.name_servers)))
    init.service("coredns", [node.binary("coredns"), "-conf", corefile], waits_for=served)
    late = after(METRICS_DELAY)
    init.service(metrics.NAME, metrics.metrics_server_argv(node), waits_for=lambda: late() and served())
    init.forked("timer-slack", timer_slack.serve, waits_for=late, restart=RestartPolicy.ON_FAILURE)
    init.task("metrics-api", lambda: metrics.install(node, listening(node.address, metrics.PORT)))
