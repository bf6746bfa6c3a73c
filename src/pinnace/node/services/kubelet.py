"""The kubelet: its configuration and command. Unless a node has cgroups, all processes stay in the Slurm step's."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.objects import HAS_CGROUPS
from pinnace.node.services.containerd import CONTAINERD_SOCKET
from pinnace.node.services.kubelet_pacing import paced
from pinnace.sandbox.mountinfo import filesystem_on, mount_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.node.init import Init
    from pinnace.spec import Allocation, NodeSpec

KUBELET_PORT = 10250
# On other file systems the kubelet cannot tell its disk's size, and does not start if it has to.
MEASURABLE = frozenset({"ext2", "ext3", "ext4", "xfs"})


def under_way(init: Init) -> Path:
    """The file that is there when the kubelet of a node for one pod has begun to watch its pods."""
    return init.run_directory / "kubelet-under-way"


def add(init: Init, api: Callable[[], bool], certificate: Callable[[], bool]) -> None:
    """The kubelet. On a node for one pod it starts at once, and gets no further than it can (``kubelet_pacing``)."""
    node = init.node
    resolver = [str(node.cluster.ranges.resolver)] if init.name_servers else []
    configuration = kubelet_config(
        node,
        resolv_conf=init.write("resolv.conf", "".join(f"nameserver {server}\n" for server in resolver)),
        system_reserved=reserved(
            node.allocation,
            cpus=os.cpu_count() or 1,
            memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        ),
        file_system=filesystem_on("/var/lib/kubelet", mount_table()),
        cgroups=init.has_cgroups,
    )
    containerd = init.timeline.ready("containerd", Path(CONTAINERD_SOCKET).exists)

    def ready() -> bool:
        return containerd() and certificate() and api()

    init.service(
        "kubelet",
        kubelet_argv(node, init.write("kubelet.json", json.dumps(configuration)), cgroups=init.has_cgroups),
        waits_for=(lambda: True) if node.pod else ready,
        output=partial(paced, ready=ready, under_way=under_way(init)) if node.pod else None,
    )


def reserved(allocation: Allocation, *, cpus: int, memory: int) -> dict[str, str]:
    """What the kubelet must leave alone so that the node offers no more than Slurm allocated: the rest of the host."""
    kept = {}
    if allocation.cpus is not None and allocation.cpus < cpus:
        kept["cpu"] = str(cpus - allocation.cpus)
    if allocation.memory is not None and allocation.memory < memory:
        kept["memory"] = str(memory - allocation.memory)
    return kept


def kubelet_config(
    node: NodeSpec, *, resolv_conf: str, system_reserved: dict[str, str], file_system: str, cgroups: bool = False
) -> dict[str, Any]:
    """A kubelet that leaves cgroups alone, unless the node has its own."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "featureGates": {"KubeletInUserNamespace": True},
        "address": node.address,
        "port": KUBELET_PORT,
        "healthzPort": 0,
        "readOnlyPort": 0,
        "enableProfilingHandler": False,
        "enableDebugFlagsHandler": False,
        "enableSystemLogHandler": False,  # files of /var/log, through whatever links a pod could put there
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": node.secret("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": node.secret(f"node-{node.name}.crt"),
        "tlsPrivateKeyFile": node.secret(f"node-{node.name}.key"),
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "clusterDNS": [str(node.cluster.ranges.dns)],
        "clusterDomain": node.cluster.domain,
        "resolvConf": resolv_conf,
        "cgroupsPerQOS": cgroups,
        "enforceNodeAllocatable": ["pods"] if cgroups else [],
        "systemReserved": system_reserved,
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "cpuCFSQuota": True,  # has CPU limits passed on to the runtime, where ours are made from them (node.limits)
        "oomScoreAdj": 0,
        "localStorageCapacityIsolation": file_system in MEASURABLE,
        "serializeImagePulls": False,
        "maxParallelImagePulls": 4,
        "registerNode": True,
        "maxPods": node.cluster.ranges.max_pods,
        "evictionHard": {"nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "nodeStatusUpdateFrequency": "5s",
        "nodeStatusReportFrequency": "5m",  # if nothing has changed: that it lives, its lease says
        # Changes of ConfigMaps and Secrets are known at once, and reach a running pod's files with its next sync.
        "configMapAndSecretChangeDetectionStrategy": "Watch",
        "syncFrequency": "5s",
        "shutdownGracePeriod": "0s",
        "staticPodPath": "",
        "seccompDefault": node.cluster.restriction is not None,
        # What pods said outlives a node that leaves before its cluster; and no kubelet removes what is another's.
        **({"podLogsDir": str(node.cluster.pod_logs(node.name))} if node.joined else {}),
    }


def kubelet_argv(node: NodeSpec, config: str, *, cgroups: bool = False) -> list[str]:
    labels = node.labels | ({HAS_CGROUPS: "true"} if cgroups else {})
    return [
        node.binary("kubelet"),
        f"--config={config}",
        f"--kubeconfig={node.secret(f'node-{node.name}.kubeconfig')}",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        *([f"--node-labels={','.join(f'{key}={value}' for key, value in labels.items())}"] if labels else []),
        *([f"--register-with-taints={','.join(node.taints)}"] if node.taints else []),
        "--v=2",
    ]
