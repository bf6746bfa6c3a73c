"""etcd and the API server: what the first node of a cluster starts before all else.

Apart from ``control_plane``, because everything else waits for these two, and for what this loads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.controlplane import podsecurity, processes
from pinnace.controlplane.etcd_data import copy_seed

if TYPE_CHECKING:
    from pinnace.node.init import Init

ETCD = Path("/var/lib/etcd")


def add(init: Init) -> None:
    """Neither needs the node's network to start."""
    node = init.node
    ETCD.chmod(0o700)
    if node.cluster.seed:
        copy_seed(Path(node.cluster.seed), ETCD)
    init.service("etcd", processes.etcd_argv(node, str(ETCD)), essential=True)
    admission = ""
    if node.cluster.restriction:
        configuration = podsecurity.admission_configuration(node.cluster.restriction)
        admission = init.write("admission.json", json.dumps(configuration))
    argv = processes.apiserver_argv(node, admission=admission)
    init.service("kube-apiserver", argv, essential=True)
