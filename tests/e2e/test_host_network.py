"""Pods of the RuntimeClass `host-network`: in the hosts' own network, with all else as in any pod.

The listener on n2 asks for `hostNetwork` too, the others do not. Both work; such a pod has the address of its node.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.left import assert_nothing_left
from e2e.namespaces import Namespace, namespace, pod
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.conftest import Kubectl, User

pytestmark = pytest.mark.bed

EXAMPLES = Path(__file__).parents[2] / "examples"
CLASS: dict[str, Any] = {"runtimeClassName": "host-network"}
PORT = 21777  # no connection has it by chance: those begin at 32768
NETWORK = "readlink /proc/self/ns/net"
# Tells everybody who connects from where, and begins with a line when it listens.
TELL = """
import socket, sys
with socket.create_server(("", int(sys.argv[1]))) as server:
    print("ready", flush=True)
    while True:
        connection, (peer, _) = server.accept()
        with connection:
            connection.sendall(peer.encode())
"""
ASK = "import socket, sys; print(socket.create_connection((sys.argv[1], int(sys.argv[2])), 10).recv(99).decode())"
VERSION = """
curl -sS --cacert $0/ca.crt -H "Authorization: Bearer $(cat $0/token)" \
  https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT/version
"""
SHIM, CLIENT = "containerd-shim-runc-v2 -namespace", "shim_client.py"  # in their commands
PROBED = {
    "readinessProbe": {"tcpSocket": {"port": PORT + 2}, "periodSeconds": 1},
    "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
}
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


@pytest.fixture(scope="module")
def here(cluster: Kubectl) -> Iterator[Namespace]:
    telling = ("python3", "-c", TELL, str(PORT))
    with namespace(cluster, "hosts") as here:
        here.create(
            pod("listener", *telling, of="python", nodeName="n2", hostNetwork=True, **CLASS),
            pod("caller", of="python", nodeName="n1", **CLASS),
            pod("tools", of="nettools", nodeName="n2", dnsPolicy="None", dnsConfig={"nameservers": ["192.0.2.9"]},
                **CLASS),
            pod("probed", "python3", "-c", TELL, str(PORT + 2), of="python", nodeName="n1", container=PROBED, **CLASS),
            pod("inside", of="python", nodeName="n1"),
        )  # fmt: skip
        here.ready("listener", "caller", "tools", "inside", limit=120)
        yield here


def on_host(here: Namespace, host: str, script: str) -> str:
    """What a command says that runs on a host, without pinnace."""
    return here.user.run("sh", "-c", script, on=host).stdout


def address(here: Namespace, host: str) -> str:
    return on_host(here, host, f"getent hosts {host}").split()[0]


def ask(here: Namespace, name: str, host: str, port: int = PORT) -> str:
    return here("exec", name, "--", "python3", "-c", ASK, host, str(port)).strip()


@pytest.mark.parametrize(("name", "host"), [("listener", "n2"), ("caller", "n1"), ("tools", "n2")])
def test_a_pod_is_in_its_hosts_network_and_sees_its_devices(here: Namespace, name: str, host: str) -> None:
    for script in (NETWORK, "ls /sys/class/net", "cut -d: -f1 /proc/net/dev"):
        assert here.sh(name, script) == on_host(here, host, script)
    assert here.sh(name, NETWORK) != here.sh("inside", NETWORK)


def test_a_bare_host_reaches_a_pod_at_its_hosts_address(here: Namespace) -> None:
    said = here.user.run("/usr/bin/python3", "-c", ASK, address(here, "n2"), str(PORT), on="n3").stdout
    assert said.strip() == address(here, "n3")


def test_pods_reach_each_other_by_the_names_of_their_hosts(here: Namespace) -> None:
    assert ask(here, "caller", "n2") == address(here, "n1")


def test_other_pods_reach_such_a_pod_at_its_hosts_address(here: Namespace) -> None:
    assert ask(here, "inside", address(here, "n2")) == address(here, "n1")


def test_a_bare_host_sees_a_pod_at_its_hosts_address(here: Namespace) -> None:
    with here.user.bed.popen(["/usr/bin/python3", "-c", TELL, str(PORT + 1)], user="alice", on="login") as server:
        try:
            assert server.stdout
            assert server.stdout.readline() == "ready\n"
            assert ask(here, "caller", "login", PORT + 1) == address(here, "n1")
        finally:
            server.kill()


@pytest.mark.parametrize(("name", "host"), [("listener", "n2"), ("caller", "n1")])
def test_a_pod_knows_its_hosts_address_and_name_servers(here: Namespace, name: str, host: str) -> None:
    """Its own name leads there too: MPI looks it up."""
    said = here.sh(name, "echo $PINNACE_HOST_ADDRESS; getent hosts $(hostname) | cut -d ' ' -f 1").split()
    assert said == [address(here, host)] * 2
    assert here.sh(name, "cat /etc/resolv.conf") == on_host(here, host, "cat /etc/resolv.conf")


def test_a_pods_address_is_its_hosts(here: Namespace) -> None:
    """For the downward API too, and for the kubelet's probes, which it reaches from inside the cluster's network."""
    here.ready("probed")
    assert here.address("probed") == here.sh("probed", "echo $POD_IP").strip() == address(here, "n1")


def test_name_servers_that_a_pod_names_itself_are_kept(here: Namespace) -> None:
    assert here.sh("tools", "cat /etc/resolv.conf") == "nameserver 192.0.2.9\n"


def test_clients_of_the_api_find_it(here: Namespace) -> None:
    """By name, so that its certificate is right."""
    said = here("exec", "tools", "--", "sh", "-c", VERSION, ACCOUNT)
    assert json.loads(said)["major"] == "1"


def processes(here: Namespace, host: str, words: str) -> list[int]:
    """The processes on a host whose command has these words."""
    listing = here.user.bed.run(["ps", "-eo", "pid,args", "--no-headers"], user="root", on=host).stdout
    return [int(line.split()[0]) for line in listing.splitlines() if words in line]


def kill(here: Namespace, host: str, signal: str, *pids: int) -> None:
    here.user.bed.run(["kill", f"-{signal}", *map(str, pids)], user="root", on=host)


def test_a_start_that_is_interrupted_is_repeated(here: Namespace) -> None:
    """The agent is stopped while containerd waits for it, and the client killed. No shim is left of the first try."""
    agent = processes(here, "n2", "pinnace.node --cluster")[0]
    before = set(processes(here, "n2", SHIM))  # perhaps of pods that end meanwhile
    kill(here, "n2", "STOP", agent)
    try:
        here.create(pod("again", nodeName="n2", **CLASS))
        wait_until("containerd to ask", lambda: bool(processes(here, "n2", CLIENT)), limit=60, interval=0.1)
        kill(here, "n2", "KILL", *processes(here, "n2", CLIENT))
    finally:
        kill(here, "n2", "CONT", agent)
    wait_until("the event", lambda: "FailedCreatePodSandBox" in here("get", "events"), limit=60, interval=0.3)
    here.ready("again", limit=90)
    assert here.sh("again", NETWORK) == on_host(here, "n2", NETWORK)
    assert len(set(processes(here, "n2", SHIM)) - before) == 1


def test_a_pod_whose_shim_was_killed_comes_back_in_its_hosts_network(here: Namespace) -> None:
    def container() -> dict[str, Any]:
        status: dict[str, Any] = here.json("get", "pod", "lost")["status"]["containerStatuses"][0]
        return status

    before = set(processes(here, "n2", SHIM))
    here.create(pod("lost", nodeName="n2", **CLASS))
    here.ready("lost")
    kill(here, "n2", "KILL", *set(processes(here, "n2", SHIM)) - before)
    wait_until(
        "the pod to be back", lambda: container()["restartCount"] > 0 and container()["ready"], limit=90, interval=0.5
    )
    assert here.sh("lost", NETWORK) == on_host(here, "n2", NETWORK)
    assert ask(here, "caller", "n2"), "others are not touched"


def test_the_example_of_a_user_without_subordinate_ids_and_what_is_left(carol: User) -> None:
    """Nothing stays on the hosts, not even of a pod that still runs when its cluster ends."""
    staying = pod(
        "staying", "sh", "-c", "chown 33 /bin && id -u; sleep 3600", **CLASS, securityContext={"runAsUser": 33}
    )
    both = (EXAMPLES / "host-network.yaml").read_text() + "---\n" + json.dumps(staying)
    workload = carol.write("both.yaml", both)
    said = carol.pinnace("run", "-N", "2", "--image", "busybox.tar", "--until", "job/talk=Complete", workload).stdout
    assert re.search(r"talk-0-\S+ talk-1 calls from [\d.]+$", said, re.MULTILINE), said
    assert re.search(r"staying\S* 0$", said, re.MULTILINE), "who asks to be another user is the only one"
    assert_nothing_left(carol)
