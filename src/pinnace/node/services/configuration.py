"""The configuration of a node's components: pure functions, from what the node is to what the component reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pinnace.network.tun import MTU

if TYPE_CHECKING:
    from pinnace.spec import NodeSpec, Share

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
KUBELET_PORT = 10250
# On other file systems the kubelet cannot tell its disk's size, and does not start if it has to.
MEASURABLE = frozenset({"ext2", "ext3", "ext4", "xfs"})
SANDBOX_IMAGE = "pinnace.local/pause:latest"


def containerd_toml(node: NodeSpec, *, runtime: str, sandbox_image: str, cni_config: str, certs: str) -> str:
    """containerd without cgroups, AppArmor and NRI; its runtime is runc behind our wrapper."""

    def quote(text: str) -> str:
        return json.dumps(text)

    bin_dir = node.binary("bridge").rsplit("/", 1)[0]
    return f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.internal.v1.tracing", "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.erofs"]

[grpc]
address = {quote(CONTAINERD_SOCKET)}

[plugins."io.containerd.cri.v1.runtime"]
disable_apparmor = true
restrict_oom_score_adj = true
tolerate_missing_hugetlb_controller = true
enable_unprivileged_ports = true
enable_unprivileged_icmp = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = [{quote(bin_dir)}]
conf_dir = {quote(cni_config)}

[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = {quote(runtime)}
SystemdCgroup = false

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = {quote(sandbox_image)}

[plugins."io.containerd.cri.v1.images".registry]
config_path = {quote(certs)}
"""


def cni_conflist(node: NodeSpec) -> dict[str, Any]:
    """Pods hang on a bridge with this node's share of the pod range; the wire's routes do the rest."""
    subnet = str(node.cluster.ranges.pods_of(node.index))
    return {
        "cniVersion": "1.0.0",
        "name": "pinnace",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "hairpinMode": True,
                "mtu": MTU,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni",
                    "ranges": [[{"subnet": subnet}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": True}},
        ],
    }


def reserved(share: Share, *, cpus: int, memory: int) -> dict[str, str]:
    """What the kubelet must leave alone so that a node offers no more than its allocation: the host less our share."""
    kept = {}
    if share.cpus is not None and share.cpus < cpus:
        kept["cpu"] = str(cpus - share.cpus)
    if share.memory is not None and share.memory < memory:
        kept["memory"] = str(memory - share.memory)
    return kept


def kubelet_config(
    node: NodeSpec, *, resolv_conf: str, system_reserved: dict[str, str], file_system: str
) -> dict[str, Any]:
    """A kubelet that leaves cgroups alone: all processes stay in the cgroup of the Slurm step."""
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
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "systemReserved": system_reserved,
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "cpuCFSQuota": False,
        "oomScoreAdj": 0,
        "localStorageCapacityIsolation": file_system in MEASURABLE,
        "serializeImagePulls": False,
        "maxParallelImagePulls": 4,
        "registerNode": True,
        "maxPods": 250,
        "evictionHard": {"nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "nodeStatusUpdateFrequency": "5s",
        # Changes of ConfigMaps and Secrets are known at once, and reach a running pod's files with its next sync.
        "configMapAndSecretChangeDetectionStrategy": "Watch",
        "syncFrequency": "5s",
        "shutdownGracePeriod": "0s",
        "staticPodPath": "",
        "seccompDefault": node.cluster.restriction is not None,
        # What pods said outlives a node that leaves before its cluster; and no kubelet removes what is another's.
        **({"podLogsDir": str(node.cluster.pod_logs(node.name))} if node.joined else {}),
    }


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


def kubelet_argv(node: NodeSpec, config: str) -> list[str]:
    return [
        node.binary("kubelet"),
        f"--config={config}",
        f"--kubeconfig={node.secret(f'node-{node.name}.kubeconfig')}",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        *([f"--node-labels={','.join(f'{key}={value}' for key, value in node.labels.items())}"] if node.labels else []),
        *([f"--register-with-taints={','.join(node.taints)}"] if node.taints else []),
        "--v=2",
    ]
