"""Users, rights and the host: what a pod may be, and what it can reach of its node, without root anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from e2e.namespaces import Namespace, Object, image, namespace, once, pod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.conftest import Kubectl

pytestmark = pytest.mark.bed

NAME = "security"
CAPABILITIES = "grep CapEff /proc/self/status | cut -f2"
# Whether new privileges are ruled out, the kind of filter, and whether a user namespace can be made (0) or not (-1).
SECCOMP = (
    "grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status | cut -f2; "
    "python3 -c 'import ctypes; print(ctypes.CDLL(None).unshare(0x10000000))'"
)
RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "plain"},
    "handler": "runc",
}
FULL = {"cpu": "500m", "memory": "128Mi", "ephemeral-storage": "64Mi"}


def mounted(name: str, path: str, **volume: Any) -> tuple[Object, Object]:
    """A container's part and a pod's part of a volume."""
    return {"volumeMounts": [{"name": name, "mountPath": path}]}, {"volumes": [{"name": name, **volume}]}


def objects() -> list[Object]:
    empty_mount, empty = mounted("data", "/data", emptyDir={})
    memory_mount, memory = mounted("data", "/data", emptyDir={"medium": "Memory", "sizeLimit": "8Mi"})
    host_mount, host = mounted(
        "host", "/host", hostPath={"path": "/tmp/pinnace-kube-test", "type": "DirectoryOrCreate"}
    )
    tree_mount, tree = mounted("tree", "/tree", hostPath={"path": "/usr"})
    sub_paths = {"volumeMounts": [{"name": "data", "mountPath": "/etc/greeting", "subPath": "greeting"},
                                  {"name": "data", "mountPath": "/all"}]}  # fmt: skip
    write = {"name": "write", "image": image("busybox"), "command": ["sh", "-c", "echo hello > /data/greeting"]}
    return [
        once("user", "id -u; id -g; id -G; touch /data/file; stat -c %u:%g /data/file; stat -c %a:%g /data",
             container=empty_mount, **empty,
             securityContext={"runAsUser": 1234, "runAsGroup": 2345, "fsGroup": 3456, "supplementalGroups": [4567]}),
        once("not-root", "id -u", securityContext={"runAsNonRoot": True}),
        once("read-only", "touch /file || echo refused; touch /data/file && echo taken",
             container=empty_mount | {"securityContext": {"readOnlyRootFilesystem": True}}, **empty),
        once("dropped", f"{CAPABILITIES}; chown 5 /tmp || echo refused",
             container={"securityContext": {"capabilities": {"drop": ["ALL"]}}}),
        once("some", CAPABILITIES,
             container={"securityContext": {"capabilities": {"drop": ["ALL"], "add": ["CHOWN"]}}}),
        once("filtered", SECCOMP, of="python", container={"securityContext": {
            "allowPrivilegeEscalation": False, "seccompProfile": {"type": "RuntimeDefault"}}}),
        once("unfiltered", SECCOMP, of="python"),
        once("privileged", f"{CAPABILITIES}; mount -t tmpfs none /tmp && echo mounted; ls -d /dev/net/tun; "
             "ip link add made type bridge && echo linked; cat /proc/self/uid_map | tr -s ' '",
             container={"securityContext": {"privileged": True}}),
        once("host-network", "hostname; ip -o -4 addr show wire0 | tr -s ' ' | cut -d' ' -f4", of="nettools",
             hostNetwork=True, nodeName="n2"),
        once("host-pid", "ps -eo comm | sort -u; readlink /proc/1/ns/ipc /proc/self/ns/ipc | sort -u | wc -l",
             of="nettools", hostPID=True, hostIPC=True),
        once("host-path-writes", "echo from a pod > /host/file", container=host_mount, **host, nodeName="n2"),
        once("host-tree", "ls /tree/bin/env; touch /tree/file || echo refused", container=tree_mount, **tree),
        once("memory", "df -m /data | tail -1 | tr -s ' ' | cut -d' ' -f1,2; "
             "head -c 16777216 /dev/zero > /data/big || echo full", container=memory_mount, **memory),
        once("sub-path", "cat /etc/greeting; ls /all", container=sub_paths, **empty,
             initContainers=[write | empty_mount]),
        once("class", "echo through a RuntimeClass", runtimeClassName="plain"),
        pod("together", shareProcessNamespace=True),
        once("tuned", "cat /proc/sys/net/ipv4/ip_local_port_range /proc/sys/net/ipv4/tcp_syncookies", securityContext={
            "sysctls": [{"name": "net.ipv4.ip_local_port_range", "value": "20000 20999"},
                        {"name": "net.ipv4.tcp_syncookies", "value": "0"}]}),
        once("limited", "echo runs", container={"resources": {"requests": FULL, "limits": FULL}}),
        pod("on-port", "sh", "-c", "mkdir /www; echo by port > /www/index.html; exec httpd -f -p 80 -h /www",
            container={"ports": [{"containerPort": 80, "hostPort": 8888}]}, nodeName="n2"),
        pod("looks-n1", of="nettools", nodeName="n1"),
        pod("looks-n2", of="nettools", nodeName="n2"),
        once("named", "getent hosts one.example two.example; hostname -f", of="nettools", hostname="me",
             subdomain="there", hostAliases=[{"ip": "192.0.2.7", "hostnames": ["one.example", "two.example"]}]),
        once("own-dns", "cat /etc/resolv.conf", dnsPolicy="None", dnsConfig={
            "nameservers": ["192.0.2.53"], "searches": ["example"], "options": [{"name": "ndots", "value": "2"}]}),
        once("node-dns", "cat /etc/resolv.conf", dnsPolicy="Default"),
        once("low-port", "httpd -p 81 && echo listening", securityContext={"runAsUser": 1234}),
        once("pings", "ping -c 1 -W 2 127.0.0.1 > /dev/null && echo pinging", of="nettools",
             securityContext={"runAsUser": 1234, "runAsGroup": 1234},
             container={"securityContext": {"capabilities": {"drop": ["ALL"]}}}),
        once("dev-shm", "df /dev/shm | tail -1 | cut -d' ' -f1; touch /dev/shm/x && echo shared"),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def here(cluster: Kubectl) -> Iterator[Namespace]:
    with namespace(cluster, NAME) as here:
        here.create(RUNTIME_CLASS)
        here.create(*objects())
        yield here


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("user", ["1234", "2345", "2345 3456 4567", "1234:3456", "2777:3456"]),
        ("read-only", ["refused", "taken"]),
        ("dropped", ["0000000000000000", "refused"]),
        ("some", ["0000000000000001"]),
        ("filtered", ["1", "2", "-1"]),
        ("unfiltered", ["0", "2", "0"]),  # what catches calls for native sockets is a filter that denies nothing
        ("host-network", ["n2", "10.42.0.2/32"]),
        ("memory", ["tmpfs 8", "full"]),
        ("sub-path", ["hello", "greeting"]),
        ("class", ["through a RuntimeClass"]),
        ("tuned", ["20000\t20999", "0"]),
        ("limited", ["runs"]),
        ("named", ["192.0.2.7       one.example two.example"] * 2 + [f"me.there.{NAME}.svc.cluster.local"]),
        ("own-dns", ["search example", "nameserver 192.0.2.53", "options ndots:2"]),
        ("low-port", ["listening"]),
        ("pings", ["pinging"]),
        ("dev-shm", ["shm", "shared"]),
        ("host-tree", ["/tree/bin/env", "refused"]),
    ],
)
def test_a_pod_is_what_it_asked_to_be(here: Namespace, name: str, said: list[str]) -> None:
    lines = [line for line in here.ended(name).splitlines() if ": " not in line]
    assert lines == said


def test_a_privileged_pod_is_root_of_its_node_and_of_nothing_else(here: Namespace) -> None:
    said = here.ended("privileged").splitlines()
    assert said[0] == "000001ffffffffff"
    assert {"mounted", "/dev/net/tun", "linked"} <= set(said)
    assert said[-2].split() == ["0", str(here.user.uid), "1"], "root in there is the user outside"


def test_a_pod_that_must_not_be_root_is_refused_if_it_would_be(here: Namespace) -> None:
    path = "jsonpath={.status.containerStatuses[0].state.waiting.reason}=CreateContainerConfigError"
    here.wait("pod/not-root", path)


def test_a_pod_sees_the_nodes_processes_and_not_the_hosts(here: Namespace) -> None:
    seen = set(here.ended("host-pid").split())
    assert {"kubelet", "containerd", "kube-proxy"} <= seen
    assert not {"slurmd", "slurmstepd"} & seen
    assert "1" in seen


def test_a_host_path_is_the_hosts(here: Namespace) -> None:
    here.ended("host-path-writes")
    bed = here.user.bed
    assert bed.run(["cat", "/tmp/pinnace-kube-test/file"], on="n2").stdout == "from a pod\n"
    bed.run(["rm", "-r", "/tmp/pinnace-kube-test"], on="n2")


def test_containers_of_a_pod_may_share_processes(here: Namespace) -> None:
    here.ready("together")
    assert "pause" in here.sh("together", "cat /proc/1/cmdline")


def test_a_host_port_is_open_on_its_node(here: Namespace) -> None:
    here.ready("on-port", "looks-n1", "looks-n2")
    address = here.json("get", "pod", "on-port")["status"]["hostIP"]
    for node in ("n1", "n2"):
        assert here.sh(f"looks-{node}", f"curl -sS -m 5 http://{address}:8888/").strip() == "by port"


def test_the_nodes_own_resolver(here: Namespace) -> None:
    assert "nameserver 10.42.255.254" in here.ended("node-dns")
