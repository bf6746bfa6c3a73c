"""One cluster of two nodes, shared by all tests here: it is an ordinary Kubernetes."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pinnace.node.services.timer_slack import IDLE_SLACK, USUAL_SLACK
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from e2e.conftest import Kubectl

pytestmark = pytest.mark.bed

WEB = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: DoNotSchedule
          labelSelector: {matchLabels: {app: web}}
      containers:
        - name: web
          image: localhost/pinnace-test/busybox:1
          command: [sh, -c, "mkdir -p /www && echo $HOSTNAME > /www/index.html && exec httpd -f -v -h /www"]
          readinessProbe: {httpGet: {path: /, port: 80}, periodSeconds: 1}
"""
CLIENT = """
apiVersion: v1
kind: Pod
metadata: {name: %(name)s}
spec:
  nodeName: %(node)s
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: "localhost/pinnace-test/nettools:1", command: [sleep, "3600"]}]
"""

OUTSIDE = """
import socket, threading
tcp = socket.create_server(("0.0.0.0", 8080))
udp = socket.socket(type=socket.SOCK_DGRAM)
udp.bind(("0.0.0.0", 8081))
def answer():  # as often as somebody asks, who may not have waited for the first answer
    while True:
        data, peer = udp.recvfrom(99)
        udp.sendto(b"udp " + data, peer)
threading.Thread(target=answer, daemon=True).start()
print("ready", flush=True)
connection, _ = tcp.accept()
connection.sendall(b"tcp " + connection.recv(99))
connection.close()
"""


@pytest.fixture(scope="module")
def web(cluster: Kubectl) -> list[str]:
    """Four web servers over both nodes behind a Service; gives their names."""
    cluster.apply(WEB)
    cluster("rollout", "status", "deployment/web", "--timeout=120s")
    pods = cluster.json("get", "pods", "-l", "app=web")["items"]
    assert {pod["spec"]["nodeName"] for pod in pods} == {"n1", "n2"}
    return [pod["metadata"]["name"] for pod in pods]


@pytest.fixture(scope="module")
def clients(cluster: Kubectl) -> dict[str, str]:
    """A pod on each node to look from; by node."""
    for node in ("n1", "n2"):
        cluster.apply(CLIENT % {"name": f"client-{node}", "node": node})
    cluster("wait", "--for=condition=Ready", "pod/client-n1", "pod/client-n2", "--timeout=120s")
    return {node: f"client-{node}" for node in ("n1", "n2")}


def test_both_hosts_are_nodes_with_their_names(cluster: Kubectl) -> None:
    nodes = cluster.json("get", "nodes")["items"]
    assert [node["metadata"]["name"] for node in nodes] == ["n1", "n2"]
    assert {node["status"]["nodeInfo"]["kubeletVersion"] for node in nodes} == {"v1.36.3"}
    assert all(node["spec"]["podCIDR"] for node in nodes)


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_service_spreads_over_both_nodes_from_either(
    cluster: Kubectl, web: list[str], clients: dict[str, str], node: str
) -> None:
    loop = "for i in $(seq 40); do curl -sS -m 5 http://web.default.svc.cluster.local; done"
    answers = cluster("exec", clients[node], "--", "sh", "-c", loop).split()
    assert set(answers) == set(web)


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_the_other_side_sees_a_pods_own_address(
    cluster: Kubectl, web: list[str], clients: dict[str, str], node: str
) -> None:
    """Directly and through a Service, on the same node and across."""
    own = cluster.json("get", "pod", clients[node])["status"]["podIP"]
    for pod in cluster.json("get", "pods", "-l", "app=web")["items"]:
        cluster("exec", clients[node], "--", "curl", "-sS", "-m", "5", f"http://{pod['status']['podIP']}/")

    def is_seen(name: str) -> bool:
        return f"{own}:" in cluster("logs", name).replace("[::ffff:", "").replace("]", "")

    for name in web:
        wait_until(f"{name} to say whom it has seen", partial(is_seen, name), limit=60, interval=0.2)


def test_ping_crosses_nodes_with_large_packets(cluster: Kubectl, clients: dict[str, str]) -> None:
    address = cluster.json("get", "pod", clients["n2"])["status"]["podIP"]
    for size in ("56", "1400", "9000", "60000"):
        answer = cluster("exec", clients["n1"], "--", "ping", "-c", "2", "-W", "10", "-s", size, address)
        assert " 0% packet loss" in answer


def test_exec_logs_and_copy(cluster: Kubectl, clients: dict[str, str]) -> None:
    pod = clients["n2"]
    assert cluster("exec", pod, "--", "hostname").strip() == pod
    cluster("exec", pod, "--", "sh", "-c", "exit 3", code=3)
    cluster.user.write("to-copy", "content\n")
    cluster("cp", "to-copy", f"{pod}:/tmp/copied")
    assert cluster("exec", pod, "--", "cat", "/tmp/copied") == "content\n"


def test_the_api_is_reached_from_a_pod_with_its_token(cluster: Kubectl, clients: dict[str, str]) -> None:
    secrets = "/var/run/secrets/kubernetes.io/serviceaccount"
    command = (
        f'curl -sS --cacert {secrets}/ca.crt -H "Authorization: Bearer $(cat {secrets}/token)" '
        "https://kubernetes.default.svc/version"
    )
    answer = cluster("exec", clients["n2"], "--", "sh", "-c", command)
    assert json.loads(answer)["gitVersion"] == "v1.36.3"


ASK_OVER_UDP = """
for attempt in 1 2 3 4 5; do  # on a machine that is busy, two seconds may be too short
    answer=$(echo one | socat -t 2 - UDP:198.51.100.10:8081)
    [ -n "$answer" ] && echo "$answer" && break
done
"""


def test_the_outside_is_reached_over_tcp_and_udp(cluster: Kubectl, clients: dict[str, str]) -> None:
    """The bed's host `outside` plays the rest of the world."""
    bed = cluster.user.bed
    with bed.popen(["/usr/bin/python3", "-c", OUTSIDE], on="outside") as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        udp = cluster("exec", clients["n1"], "--", "sh", "-c", ASK_OVER_UDP)
        tcp = cluster("exec", clients["n2"], "--", "sh", "-c", "echo two | socat -t 30 - TCP:198.51.100.10:8080")
        process.kill()
    assert udp == "udp one\n"
    assert tcp == "tcp two\n"


def status(cluster: Kubectl) -> dict[str, Any]:
    about: dict[str, Any] = json.loads(cluster.user.pinnace("status", cluster.cluster, "-o", "json").stdout)
    return about


def test_status_tells_of_the_job_and_where_the_api_is(cluster: Kubectl) -> None:
    about = status(cluster)
    job = cluster.user.run("squeue", "--me", "--noheader", "--format=%i", "--name=pinnace-shared").stdout.strip()
    assert (about["name"], about["state"], str(about["job"]), about["hosts"]) == ("shared", "running", job, "n[1-2]")
    assert re.fullmatch(r"(\d+-)?[\d:]+", about["left"])
    assert about["api"] in cluster("config", "view", "--minify")
    table = cluster.user.pinnace("status", cluster.cluster).stdout
    assert re.search(rf"^JOB +{job}$", table, re.MULTILINE)
    assert re.search(rf"^API +{re.escape(about['api'])}$", table, re.MULTILINE)
    (row,) = json.loads(cluster.user.pinnace("list", "-o", "json").stdout)
    assert row["api"] == about["api"]


def test_status_tells_of_every_component(cluster: Kubectl) -> None:
    names = ("links", "proxy", "sockets", "netns-sockets", "containerd", "registry", "kubelet", "kube-proxy", "usage",
             "limits", "storage")  # fmt: skip
    everywhere = {(node, name) for node in ("n1", "n2") for name in names}
    on_head = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "coredns", "metrics-server",
               "time-limit", "timer-slack")  # fmt: skip
    expected = everywhere | {("n1", name) for name in on_head} | {("n2", "watch-head")}
    once = {(node, name) for node in ("n1", "n2") for name in ("images", "verify-image-cache")}  # the latter if need be
    once |= {("n1", name) for name in ("certificates", "wait-for-api", "bootstrap", "metrics-api")}

    def all_run() -> bool:
        """Some start only when nobody waits for the first pods any more."""
        rows = status(cluster)["services"]
        states = {(row["node"], row["name"]): row["state"] for row in rows}
        assert len(states) == len(rows)
        assert {who for who, state in states.items() if state == "done"} <= once
        idle = {who for who, state in states.items() if state == "idle"}
        assert {name for _, name in idle} <= {"registry"}, "nobody pulls now"
        running = {who for who, state in states.items() if state == "running"} | idle
        assert running <= expected | once
        return running - once == expected

    wait_until("every component to run", all_run, limit=60)


def test_a_component_that_dies_is_restarted_and_said(cluster: Kubectl) -> None:
    bed = cluster.user.bed
    bed.run(["pkill", "-KILL", "-f", "kube-scheduler"], user="root", on="n1")

    def restarted() -> bool:
        rows = status(cluster)["services"]
        return any(r["name"] == "kube-scheduler" and r["restarts"] == 1 and r["state"] == "running" for r in rows)

    wait_until("the scheduler to be back", restarted, limit=60)


def test_the_controller_manager_did_not_wait_for_hooks_that_had_nothing_to_do(cluster: Kubectl) -> None:
    directory = f"/home/alice/.local/share/pinnace/clusters/{cluster.cluster}"
    log = cluster.user.run("cat", f"{directory}/logs/n1/kube-controller-manager.log").stdout
    assert "Serving securely" in log
    assert "APIServer isn't healthy yet" not in log


@pytest.mark.usefixtures("clients")
def test_an_idle_control_plane_rests_and_containers_do_not_inherit_it(cluster: Kubectl) -> None:
    bed, read = cluster.user.bed, "cat /proc/$(pgrep -o -x %s)/timerslack_ns"

    def slack(name: str) -> int:
        return int(bed.run(["sh", "-c", read % name], user="root", on="n1").stdout)

    wait_until("etcd to rest", lambda: slack("etcd") == IDLE_SLACK, limit=120, interval=1)
    assert (slack("kubelet"), slack("containerd"), slack("pause")) == (USUAL_SLACK,) * 3


def test_nothing_of_the_cluster_is_readable_by_others(cluster: Kubectl) -> None:
    path = f"/home/alice/.local/share/pinnace/clusters/{cluster.cluster}"
    denied = cluster.user.bed.run(["ls", path], user="bob", check=False)
    assert denied.returncode != 0
    for host in ("n1", "n2"):
        arguments = cluster.user.bed.run(["ps", "-eo", "args"], user="bob", on=host).stdout
        assert "BEGIN" not in arguments
        listening = cluster.user.bed.run(["ss", "-Hltunp"], user="root", on=host).stdout.splitlines()
        ours = [line for line in listening if "slurm" not in line and "srun" not in line]
        expected = 4 if host == "n1" else 3
        assert len(ours) == expected, f"only the API, links, native sockets and what is published: {listening}"
        assert all("python3" in line for line in ours)
