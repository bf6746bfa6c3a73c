"""The control plane: what the first node of a cluster runs besides what every node does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.controlplane import metrics, podsecurity, processes
from pinnace.controlplane.bootstrap import ROLES, bootstrap, plant
from pinnace.kube.client import Api
from pinnace.node.readiness import after, listening, once
from pinnace.spec import METRICS_DELAY

if TYPE_CHECKING:
    from pinnace.node.init import Init

ETCD = Path("/var/lib/etcd")


def add(init: Init) -> None:
    """Its services, and what is done once while they start."""
    node = init.node
    init.task("bootstrap", lambda: bootstrap(node))
    asked = Api(node.cluster.secrets / "admin.kubeconfig", timeout=1.0)
    roles = once(lambda: asked.healthy(ROLES))  # without them the clients of the API may do nothing
    ETCD.chmod(0o700)
    if node.cluster.seed:
        plant(Path(node.cluster.seed), ETCD)
    init.service("etcd", processes.etcd_argv(node, str(ETCD)), essential=True)
    admission = ""
    if node.cluster.restriction:
        configuration = podsecurity.admission_configuration(node.cluster.restriction)
        admission = init.write("admission.json", json.dumps(configuration))
    init.service("kube-apiserver", processes.apiserver_argv(node, admission=admission), essential=True)
    controllers = processes.controller_manager_argv(node)
    init.service("kube-controller-manager", controllers, essential=True, waits_for=roles)
    init.service("kube-scheduler", processes.scheduler_argv(node), essential=True, waits_for=roles)
    corefile = init.write("Corefile", processes.corefile(node, forward=bool(init.name_servers)))
    init.service("coredns", [node.binary("coredns"), "-conf", corefile], waits_for=roles)
    late = after(METRICS_DELAY)
    init.service(metrics.NAME, metrics.metrics_server_argv(node), waits_for=lambda: late() and roles())
    init.task("metrics-api", lambda: metrics.install(node, listening(node.address, metrics.PORT)))
