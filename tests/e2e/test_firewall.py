"""A site with closed doors: login and compute hosts reach each other by Slurm alone. An unmodified kubectl works.

Every job has a /tmp of its own, which goes with it.
"""

from __future__ import annotations

import contextlib
import json
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from e2e.conftest import Kubectl, User, another_site, make_user
from e2e.test_run import EXAMPLES
from testbed.daemons import listening_ports
from testbed.firewall import USER_PORTS
from testbed.plan import Plan
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from testbed import Bed

pytestmark = pytest.mark.bed

PUBLISHED = 30080
POD = """
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: web
    image: localhost/pinnace-test/busybox:1
    command: [sh, -c, "echo started; mkdir /www; echo page > /www/index.html; exec httpd -f -p 8080 -h /www"]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080, nodePort: 30080}]
"""
FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())"
# Whether one who connects gets anything but a reset: the tunnel is its user's alone.
CONNECT = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10) as sock:
        sock.sendall(b"x" * 100)
        print("answer", sock.recv(100))
except OSError as error:
    print(type(error).__name__)
"""
SQUAT = """
import socket, sys
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as listener:
    print("listening", flush=True)
    sys.stdin.read()
"""
SSHD = """
Port 22
ListenAddress 0.0.0.0
HostKey /tmp/sshd/host
AuthorizedKeysFile /tmp/sshd/authorized
PidFile none
UsePAM no
PasswordAuthentication no
StrictModes no
"""


@pytest.fixture(scope="module")
def site(real_store: Path) -> Iterator[Bed]:
    """A bed with a firewall and two networks, whose administrators have written down the ports that are open."""
    plan = Plan(hosts=2, fast=True, firewall=True, two_nets=True, private_tmp=True)
    with another_site("closed", plan, real_store) as bed:
        bed.run(["tee", "/etc/pinnace.toml"], user="root", input=f'ports = "{USER_PORTS}"\n')
        yield bed


@pytest.fixture(scope="module")
def alice(site: Bed) -> User:
    return make_user(site, "alice", "busybox")


@pytest.fixture(scope="module")
def bob(site: Bed) -> User:
    return make_user(site, "bob")


@pytest.fixture(scope="module")
def kubectl(alice: User) -> Iterator[Kubectl]:
    """kubectl with the kubeconfig of a cluster of two nodes, in which a pod runs."""
    options = ["--publish", str(PUBLISHED), "--interface", "eth1", "--image", "busybox.tar"]
    alice.pinnace("up", "-N", "2", "--name", "closed", *options)
    kubectl = Kubectl(user=alice, cluster="closed")
    kubectl.apply(POD)
    kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=60s")
    yield kubectl
    alice.pinnace("down", "closed")
    wait_until("nothing to be left", lambda: left(alice) == [], limit=60, interval=0.2)


def left(user: User) -> list[str]:
    """The processes of clusters on the login host, and the user's jobs."""
    processes = user.run("pgrep", "-u", user.name, "-a", code=None).stdout.splitlines()
    jobs = user.run("squeue", "--noheader", "--me").stdout.splitlines()
    return [line for line in processes if "pinnace" in line or "srun" in line] + jobs


def address(kubectl: Kubectl) -> tuple[str, str]:
    """Where the tunnel listens on the login host."""
    path = kubectl.user.home / ".local/share/pinnace/clusters" / kubectl.cluster / "kubeconfig"
    server = json.loads(path.read_text())["clusters"][0]["cluster"]["server"]
    host, _, port = server.removeprefix("https://").partition(":")
    return host, port


def tunnels(user: User) -> list[int]:
    found = user.run("pgrep", "-u", user.name, "-f", "pinnace[.]cluster[.]tunnel", code=None).stdout
    return [int(line) for line in found.split()]


def kill_tunnel(kubectl: Kubectl) -> None:
    """kill -9, and wait until the kernel has closed its sockets."""
    user = kubectl.user
    (pid,) = tunnels(user)
    user.run("kill", f"-{signal.SIGKILL.value}", str(pid))

    def closed() -> bool:
        return user.run("python3", "-c", CONNECT, *address(kubectl)).stdout == "ConnectionRefusedError\n"

    wait_until("the end of the tunnel", lambda: not tunnels(user), limit=60, interval=0.05)
    wait_until("its port to be closed", closed, limit=60, interval=0.05)


def test_a_run_on_two_nodes(alice: User) -> None:
    for name in ("hello.yaml",):
        alice.write(name, (EXAMPLES / name).read_text())
    result = alice.pinnace("run", "-N", "2", "-t", "10", "--image", "busybox.tar", "hello.yaml")
    assert "this host does not reach the nodes" in result.stderr
    assert "on n1" in result.stdout
    assert "on n2" in result.stdout
    for host in ("n1", "n2"):  # nothing of it was ever in the host's own
        assert list((alice.bed.directories.host(host) / "tmp").iterdir()) == []


def test_an_ordinary_kubectl_does_all_it_does(alice: User, kubectl: Kubectl) -> None:
    plain = kubectl.command[0]  # with the user's own kubeconfig, in which `up` has made the context
    assert alice.run(plain, "get", "nodes", "--no-headers").stdout.count(" Ready ") == 2
    assert alice.run(plain, "logs", "web").stdout == "started\n"
    assert alice.run(plain, "exec", "web", "--", "cat", "/www/index.html").stdout == "page\n"
    alice.write("sent", "x" * 100_000)
    alice.run(plain, "cp", "sent", "web:/tmp/sent")
    alice.run(plain, "cp", "web:/tmp/sent", "received")
    assert (alice.home / "received").read_text() == "x" * 100_000
    forward = alice.bed.popen([plain, "port-forward", "pod/web", "18080:8080"], user="alice")
    try:
        assert forward.stdout is not None
        assert "Forwarding" in forward.stdout.readline()
        assert alice.run("python3", "-c", FETCH, "http://127.0.0.1:18080/").stdout == "page\n\n"
    finally:
        forward.terminate()
        forward.communicate(timeout=10)


def test_pinnace_says_how_it_goes_and_its_commands_go_the_same_way(alice: User, kubectl: Kubectl) -> None:
    host, port = address(kubectl)
    about = json.loads(alice.pinnace("status", "closed", "-o", "json").stdout)
    assert about["access"] == f"through Slurm, at {host}:{port} of the login node"
    assert alice.pinnace("kubectl", "get", "pods", "-o", "name").stdout == "pod/web\n"
    (url,) = alice.pinnace("url", "web").stdout.split()
    assert url == f"http://{host}:{PUBLISHED}"
    assert alice.run("python3", "-c", FETCH, url).stdout == "page\n\n"


def test_all_of_it_listens_on_the_device_and_the_ports_that_were_chosen(alice: User, kubectl: Kubectl) -> None:
    about = json.loads(alice.pinnace("status", kubectl.cluster, "-o", "json").stdout)
    ports = range(*map(int, USER_PORTS.split("-")))
    rows = [row for row in about["listening"] if row["port"] != PUBLISHED]
    assert {row["address"] for row in rows} == {"10.60.0.11", "10.60.0.12"}  # names lead to 10.50.0.0/24
    assert len(rows) == 5
    assert all(row["port"] in ports or row["port"] == ports.stop for row in rows)


def test_the_tunnel_comes_back_for_many_at_once(alice: User, kubectl: Kubectl) -> None:
    kill_tunnel(kubectl)
    with ThreadPoolExecutor(8) as pool:
        names = pool.map(lambda _: kubectl("get", "pods", "-o", "name"), range(8))
        assert list(names) == ["pod/web\n"] * 8
    wait_until("one tunnel", lambda: len(tunnels(alice)) == 1, limit=60, interval=0.2)


def test_others_on_the_login_host_get_nothing(kubectl: Kubectl, bob: User) -> None:
    kubectl("get", "nodes")
    for port in (address(kubectl)[1], str(PUBLISHED)):
        said = bob.run("python3", "-c", CONNECT, address(kubectl)[0], port).stdout
        assert said in {"ConnectionResetError\n", "answer b''\n"}  # closed, before or after what was sent has come


def test_an_address_that_another_user_has_taken_is_left(alice: User, kubectl: Kubectl, bob: User) -> None:
    before = address(kubectl)
    kill_tunnel(kubectl)
    squatter = bob.bed.popen(["python3", "-c", SQUAT, *before], user="bob", stdin=-1)
    try:
        assert squatter.stdout is not None
        assert squatter.stdout.readline() == "listening\n"
        said = alice.run(*kubectl.command, "get", "nodes", code=1).stderr
        assert "another program listens at" in said
        assert "run the command again" in said
        assert kubectl("get", "pods", "-o", "name") == "pod/web\n"
        assert alice.run(kubectl.command[0], "get", "pods", "-o", "name").stdout == "pod/web\n"
    finally:
        squatter.communicate("", timeout=10)
    assert address(kubectl) != before


@contextlib.contextmanager
def sshd(bed: Bed) -> Iterator[None]:
    """An sshd on the login host that lets alice in, and her key in the home of her laptop."""
    bed.run(["mkdir", "-p", "/tmp/sshd", "/run/sshd"], user="root")
    bed.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/tmp/sshd/host"], user="root")
    bed.run(["tee", "/tmp/sshd/config"], user="root", input=SSHD)
    bed.run(["mkdir", "-p", "-m", "700", "/tmp/laptop/.ssh"], on="outside")
    bed.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/tmp/laptop/.ssh/id"], on="outside")
    public = bed.run(["cat", "/tmp/laptop/.ssh/id.pub"], on="outside").stdout
    bed.run(["tee", "/tmp/sshd/authorized"], user="root", input=public)
    bed.run(["chmod", "755", "/tmp/sshd"], user="root")
    server = bed.popen(["/usr/sbin/sshd", "-D", "-e", "-f", "/tmp/sshd/config"], user="root")
    try:
        wait_until("sshd", lambda: 22 in listening_ports(bed.run(["cat", "/proc/net/tcp"]).stdout), limit=60)
        yield
    finally:
        server.terminate()
        server.communicate(timeout=10)


SSH = """\
#!/bin/sh
exec /usr/bin/ssh -i /tmp/laptop/.ssh/id -o StrictHostKeyChecking=accept-new \\
    -o UserKnownHostsFile=/tmp/laptop/.ssh/known "$@"
"""


def test_from_a_laptop_with_nothing_but_ssh(alice: User, kubectl: Kubectl) -> None:
    bed = alice.bed
    document = alice.pinnace("kubeconfig", "closed", "--ssh", "alice@login").stdout
    assert "PRIVATE KEY" not in document
    assert "key-data" not in document
    with sshd(bed):
        bed.run(["mkdir", "-p", "/tmp/laptop/bin"], on="outside")
        bed.run(["tee", "/tmp/laptop/config"], on="outside", input=document)
        bed.run(["tee", "/tmp/laptop/bin/ssh"], on="outside", input=SSH)
        bed.run(["chmod", "755", "/tmp/laptop/bin/ssh"], on="outside")
        environment = ["env", "HOME=/tmp/laptop", "PATH=/tmp/laptop/bin:/usr/bin:/bin", "KUBECONFIG=/tmp/laptop/config"]
        laptop = [*environment, kubectl.command[0]]
        try:
            assert alice.run(*laptop, "get", "pods", "-o", "name", on="outside").stdout == "pod/web\n"
            kill_tunnel(kubectl)
            assert alice.run(*laptop, "exec", "web", "--", "echo", "hi", on="outside").stdout == "hi\n"
        finally:
            (control,) = bed.run(["sh", "-c", "echo /tmp/laptop/.ssh/pinnace-*"], on="outside").stdout.split()
            bed.run(["ssh", "-S", control, "-O", "exit", "x"], on="outside")


def test_the_page_for_administrators_names_what_is_closed(alice: User) -> None:
    page = alice.pinnace("doctor", "--partition", "main", "--all").stdout
    assert "**2 of 2 nodes can run clusters.**" in page
    assert f"✓ listens at 10.50.0.11 (eth0), ports {USER_PORTS}" in page
    assert "! login does not reach the node's ports" in page


def test_the_settings_that_hold(alice: User) -> None:
    rows = json.loads(alice.pinnace("config", "-o", "json").stdout)
    assert {"key": "ports", "value": USER_PORTS, "from": "/etc/pinnace.toml"} in rows
    environment = {"key": "ports", "value": "50000-50100", "from": "$PINNACE_PORTS"}
    assert environment in json.loads(
        alice.run("env", "PINNACE_PORTS=50000-50100", "pinnace", "config", "-o", "json").stdout
    )
