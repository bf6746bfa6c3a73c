"""kube-proxy: Services, by nftables."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pinnace.node.readiness import after
from pinnace.node.services.kubelet import under_way

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.node.init import Init
    from pinnace.spec import NodeSpec

KUBELET_WAIT_LIMIT = 5.0  # seconds after which it starts even if the kubelet has not said that it is under way
NICE_FOR_PODS = 5  # on a node for one pod


def add(init: Init, api: Callable[[], bool]) -> None:
    """On a node for one pod the pod's own start comes first; Services are there when its program has begun."""
    node = init.node
    configuration = init.write("kube-proxy.json", json.dumps(kube_proxy_config(node)))
    kubelet_started, anyway = under_way(init).exists, after(KUBELET_WAIT_LIMIT)
    init.service(
        "kube-proxy",
        [node.binary("kube-proxy"), f"--config={configuration}"],
        waits_for=(lambda: kubelet_started() or anyway()) if node.pod else api,
        nice=NICE_FOR_PODS if node.pod else 0,
    )


def kube_proxy_config(node: NodeSpec) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": node.secret("kube-proxy.kubeconfig")},
        "mode": "nftables",
        "clusterCIDR": str(node.cluster.ranges.pods),
        "hostnameOverride": node.name,
        "bindAddress": node.address,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "nftables": {"syncPeriod": "30s", "minSyncPeriod": "0s"},
    }
