"""The commands of the control plane's processes: pure functions of the head node's specification."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinnace.controlplane import podsecurity
from pinnace.spec import API_PORT

if TYPE_CHECKING:
    from pinnace.spec import NodeSpec

ETCD_SOCKET = "unix:///run/pinnace/etcd.sock"


def etcd_argv(node: NodeSpec, data: str, client: str = ETCD_SOCKET) -> list[str]:
    """etcd with one member, on a UNIX socket in a directory of ours: no other user's process can connect to it."""
    return [
        node.binary("etcd"),
        f"--data-dir={data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={client}-peer",
        "--initial-advertise-peer-urls=http://localhost:2380",
        "--initial-cluster=default=http://localhost:2380",
        "--unsafe-no-fsync",
        # A single member elects itself after at least one heartbeat and at most the timeout, by default a second.
        "--heartbeat-interval=50",
        "--election-timeout=250",
        "--log-level=warn",
    ]


def apiserver_argv(
    node: NodeSpec,
    *,
    etcd: str = ETCD_SOCKET,
    port: int = API_PORT,
    bind: str = "0.0.0.0",  # noqa: S104 - of the fabric's own namespace
    admission: str = "",
) -> list[str]:
    """``admission`` is the path of the ``podsecurity.admission_configuration``, for a restricted cluster."""
    ranges, secret = node.cluster.ranges, node.secret
    plugins = ["NodeRestriction", *(podsecurity.ADMISSION_PLUGINS if admission else ())]
    return [
        node.binary("kube-apiserver"),
        f"--etcd-servers={etcd}",
        f"--secure-port={port}",
        f"--bind-address={bind}",
        f"--advertise-address={node.address}",
        f"--service-cluster-ip-range={ranges.services}",
        "--anonymous-auth=false",  # the port is open to the site's network
        "--authorization-mode=Node,RBAC",
        f"--enable-admission-plugins={','.join(plugins)}",
        *([f"--admission-control-config-file={admission}"] if admission else []),
        "--allow-privileged=true",
        "--enable-aggregator-routing=true",
        "--default-not-ready-toleration-seconds=60",
        "--default-unreachable-toleration-seconds=60",
        "--profiling=false",
        f"--client-ca-file={secret('ca.crt')}",
        f"--tls-cert-file={secret('apiserver.crt')}",
        f"--tls-private-key-file={secret('apiserver.key')}",
        f"--tls-sni-cert-key={secret('apiserver-outside.crt')},{secret('apiserver-outside.key')}",
        f"--service-account-issuer=https://kubernetes.default.svc.{node.cluster.domain}",
        f"--service-account-key-file={secret('sa.pub')}",
        f"--service-account-signing-key-file={secret('sa.key')}",
        f"--kubelet-client-certificate={secret('kubelet-client.crt')}",
        f"--kubelet-client-key={secret('kubelet-client.key')}",
        f"--kubelet-certificate-authority={secret('ca.crt')}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={secret('ca.crt')}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={secret('front-proxy.crt')}",
        f"--proxy-client-key-file={secret('front-proxy.key')}",
    ]


def controller_manager_argv(node: NodeSpec, kubeconfig: str) -> list[str]:
    """``kubeconfig`` is the way to the API for its controllers (see ``early_health``)."""
    ranges, secret = node.cluster.ranges, node.secret
    return [
        node.binary("kube-controller-manager"),
        *_client_and_server(node, "controller-manager", kubeconfig),
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={secret('sa.key')}",
        f"--root-ca-file={secret('ca.crt')}",
        f"--cluster-signing-cert-file={secret('ca.crt')}",
        f"--cluster-signing-key-file={secret('ca.key')}",
        "--allocate-node-cidrs=false",
        f"--cluster-cidr={ranges.pods}",
        f"--service-cluster-ip-range={ranges.services}",
        "--node-monitor-grace-period=24s",
        "--node-monitor-period=2s",
    ]


def scheduler_argv(node: NodeSpec) -> list[str]:
    """Its log says when each pod was bound, for ``pinnace timeline``."""
    return [node.binary("kube-scheduler"), *_client_and_server(node, "scheduler"), "--v=2"]


def _client_and_server(node: NodeSpec, name: str, kubeconfig: str = "") -> list[str]:
    """The options of controllers: as clients of the API, and as servers of their metrics."""
    path = node.secret(f"{name}.kubeconfig")
    return [
        "--bind-address=127.0.0.1",
        f"--tls-cert-file={node.secret(f'{name}.crt')}",  # without, it takes half a second to make an RSA key
        f"--tls-private-key-file={node.secret(f'{name}.key')}",
        f"--kubeconfig={kubeconfig or path}",
        f"--authentication-kubeconfig={path}",
        f"--authorization-kubeconfig={path}",
        "--leader-elect=false",
        "--profiling=false",
        "--kube-api-qps=500",  # at the default of 20, forty controllers fetch their credentials for four seconds
        "--kube-api-burst=1000",
    ]


def corefile(node: NodeSpec, *, forward: bool) -> str:
    """CoreDNS's configuration: names of the cluster and, with ``forward``, of the host's name servers."""
    outside = f"forward . {node.cluster.ranges.resolver} {{ max_concurrent 1000 }}" if forward else ""
    return f""".:53 {{
  bind {node.address}
  errors
  kubernetes {node.cluster.domain} in-addr.arpa ip6.arpa {{
    kubeconfig {node.secret("coredns.kubeconfig")} coredns
    pods insecure
    fallthrough in-addr.arpa ip6.arpa
    ttl 5
  }}
  {outside}
  cache 30
  loadbalance
}}
"""
