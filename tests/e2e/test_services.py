"""Services and names: every kind, from pods and from the nodes themselves, on either node."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from e2e.namespaces import Namespace, Object, namespace, pod, service
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.conftest import Kubectl

pytestmark = pytest.mark.bed

NODES = ("n1", "n2")
WEB = ("web-n1", "web-n2")
NODE_PORT = 30080
NAME = "services"
# Over TCP says who it is and whom it sees; over UDP repeats what it hears, with its name.
SERVER = """
import http.server, os, socket, threading
me = os.environ["HOSTNAME"]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"{me} {self.client_address[0]}\\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
udp = socket.socket(type=socket.SOCK_DGRAM)
udp.bind(("0.0.0.0", 8081))
def repeat():
    while True:
        data, peer = udp.recvfrom(65535)
        udp.sendto(me.encode() + b" " + data, peer)
threading.Thread(target=repeat, daemon=True).start()
http.server.ThreadingHTTPServer(("0.0.0.0", 8080), Handler).serve_forever()
"""
# The host's name server: every name is 192.0.2.99. (A header of 12 bytes, the question, and a pointer back to it.)
NAME_SERVER = """
import socket
server = socket.socket(type=socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
print("ready", flush=True)
while True:
    query, peer = server.recvfrom(999)
    question = query[12:query.index(b"\\0", 12) + 5]
    answer = b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\x05\\0\\4" + bytes([192, 0, 2, 99])
    server.sendto(query[:2] + b"\\x81\\x80\\0\\1\\0\\1\\0\\0\\0\\0" + question + answer, peer)
"""
FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())"

# Connections through a NodePort, which kube-proxy masquerades, then some to a pod; prints how long the longest took.
MASQUERADED = """
import socket, sys, time
def ask(*server):
    begin = time.monotonic()
    with socket.create_connection(server, timeout=30) as connection:
        connection.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
        while connection.recv(4096): pass
    return time.monotonic() - begin
node, node_port, pod = sys.argv[1:]
for _ in range(2000): ask(node, int(node_port))
print(max(ask(pod, 8080) for _ in range(300)))
"""


def objects() -> list[Object]:
    made: list[Object] = []
    ready = {"readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1}}
    web, http = {"app": "web"}, {"name": "http", "port": 80, "targetPort": 8080}
    for node in NODES:
        labels = {"app": "web", "on": node}
        server = ("python3", "-c", SERVER)
        made += [
            pod(f"web-{node}", *server, of="python", labels=labels, container=ready, nodeName=node,
                hostname=f"web-{node}", subdomain="headless"),
            pod(f"client-{node}", of="nettools", nodeName=node),
            pod(f"host-{node}", of="nettools", nodeName=node, hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet"),
            service(f"only-{node}", labels, http),
        ]  # fmt: skip
    return [
        *made,
        service("both", web, http),
        service("headless", web, http, clusterIP="None"),
        service("node-port", web, http | {"nodePort": NODE_PORT}, type="NodePort"),
        service("sticky", web, http, sessionAffinity="ClientIP"),
        service("datagrams", web, {"port": 8081, "protocol": "UDP"}),
        service("nobody", {"app": "nobody"}, http),
        service("elsewhere", web, http, internalTrafficPolicy="Local"),
    ]


@pytest.fixture(scope="module")
def here(cluster: Kubectl) -> Iterator[Namespace]:
    with namespace(cluster, NAME) as here:
        here.create(*objects())
        here.ready(*(f"{kind}-{node}" for kind in ("web", "client", "host") for node in NODES))
        for node in NODES:
            wait_until("the rules of a node", partial(reaches_both, here, f"client-{node}"), limit=60, interval=0.5)
        yield here


def reaches_both(here: Namespace, client: str) -> bool:
    """Whether the rules of a client's node have both servers of every Service. They come a moment after the servers."""
    loop = "for i in $(seq 20); do curl -sS -m 20 http://$name/ || break; done"
    expected = [("both", set(WEB)), ("node-port", set(WEB)), *((f"only-{node}", {f"web-{node}"}) for node in NODES)]
    said = (here.sh(client, f"name={name}; {loop}", code=None).splitlines() for name, _ in expected)
    return all({line.split()[0] for line in lines} == who for lines, (_, who) in zip(said, expected, strict=True))


def fetch(here: Namespace, client: str, url: str, times: int = 1) -> list[list[str]]:
    """The server's name and the client's address as it sees it, of every answer."""
    loop = f"for i in $(seq {times}); do curl -sS -m 20 {url} || exit 1; done"
    return [line.split() for line in here.sh(client, loop).splitlines()]


@pytest.mark.parametrize("client", ["client-n1", "client-n2", "host-n1", "host-n2"])
def test_a_node_port_is_open_on_every_node_for_pods_and_nodes(here: Namespace, client: str) -> None:
    for node in NODES:
        address = here.json("get", "pod", f"host-{node}")["status"]["hostIP"]
        answers = fetch(here, client, f"http://{address}:{NODE_PORT}/", times=30)
        assert {name for name, _ in answers} == set(WEB)


@pytest.mark.parametrize("client", ["client-n1", "client-n2", "host-n1", "host-n2"])
def test_a_service_reaches_endpoints_on_one_node_from_anywhere(here: Namespace, client: str) -> None:
    for node in NODES:
        assert fetch(here, client, f"http://only-{node}/")[0][0] == f"web-{node}"


@pytest.mark.parametrize("node", NODES)
def test_the_server_sees_the_clients_own_address_through_a_service(here: Namespace, node: str) -> None:
    own = here.address(f"client-{node}")
    assert {seen for _, seen in fetch(here, f"client-{node}", "http://both/", times=8)} == {own}


def test_connections_of_other_nodes_are_known_among_those_that_are_masqueraded(here: Namespace) -> None:
    """Where a masqueraded one has the port of a knock, the kernel changes that of the knock; and 10 s would pass."""
    node = here.json("get", "pod", "host-n1")["status"]["hostIP"]
    argv = ("python3", "-c", MASQUERADED, node, str(NODE_PORT), here.address("web-n1"))
    assert float(here("exec", "web-n2", "--", *argv)) < 5


@pytest.mark.parametrize("node", NODES)
def test_a_pod_reaches_itself_through_its_service(here: Namespace, node: str) -> None:
    answer = here("exec", f"web-{node}", "--", "python3", "-c", FETCH, f"http://only-{node}/")
    assert answer.split()[0] == f"web-{node}"


@pytest.mark.parametrize("node", NODES)
def test_session_affinity_keeps_a_client_at_its_server(here: Namespace, node: str) -> None:
    assert len({name for name, _ in fetch(here, f"client-{node}", "http://sticky/", times=15)}) == 1


@pytest.mark.parametrize("node", NODES)
def test_internal_traffic_stays_on_its_node_if_told_so(here: Namespace, node: str) -> None:
    assert {name for name, _ in fetch(here, f"client-{node}", "http://elsewhere/", times=8)} == {f"web-{node}"}


@pytest.mark.parametrize("client", ["client-n1", "client-n2", "host-n2"])
def test_udp_reaches_both_servers_through_a_service(here: Namespace, client: str) -> None:
    loop = f"for i in $(seq 16); do echo ping | socat -t 0.3 - UDP:datagrams.{NAME}.svc.cluster.local:8081; done"
    answers = here.sh(client, loop).splitlines()
    assert set(answers) == {"web-n1 ping", "web-n2 ping"}


@pytest.mark.parametrize("size", [1400, 9000, 60000])
def test_large_datagrams_cross_nodes(here: Namespace, size: int) -> None:
    # From a file: socat would send what a pipe happens to hold, as several datagrams.
    command = (
        f"head -c {size} /dev/zero | tr '\\0' x >/tmp/{size};"
        f" socat -b 65000 -t 2 - UDP:{here.address('web-n2')}:8081 </tmp/{size} | wc -c"
    )
    assert here.sh("client-n1", command).strip() == str(size + len("web-n2 "))


@pytest.mark.parametrize("client", ["client-n1", "host-n2"])
def test_a_service_without_endpoints_refuses_at_once(here: Namespace, client: str) -> None:
    here("exec", client, "--", "curl", "-sS", "-m", "5", "http://nobody/", code=7)


@pytest.mark.parametrize("client", ["client-n1", "client-n2", "host-n1", "host-n2"])
def test_names_of_services_and_pods(here: Namespace, client: str) -> None:
    domain = f"{NAME}.svc.cluster.local"
    addresses = {node: here.address(f"web-{node}") for node in NODES}
    both = here.json("get", "service", "both")["spec"]["clusterIP"]

    pod_name = f"{addresses['n1'].replace('.', '-')}.{NAME}.pod.cluster.local"
    expected = {
        "both": [both],
        f"both.{domain}": [both],
        "headless": sorted(addresses.values()),
        f"web-n1.headless.{domain}": [addresses["n1"]],
        pod_name: [addresses["n1"]],
        f"-x {both}": [f"both.{domain}."],
        "+tcp kubernetes.default.svc.cluster.local": ["10.96.0.1"],
        f"SRV _http._tcp.both.{domain}": ["0", "100", "80", f"both.{domain}."],
        "no-such-name": [],
    }
    script = "; ".join(f"echo $(dig +short +search {words})" for words in expected)
    answers = [sorted(line.split()) for line in here.sh(client, script).split("\n")[:-1]]
    assert dict(zip(expected, answers, strict=True)) == expected
    assert f"web-n2.headless.{domain}." in here.sh(client, f"dig +short -x {addresses['n2']}").split()


def test_names_of_the_outside_are_the_hosts_business(here: Namespace) -> None:
    """Where CoreDNS runs; a pod on either node gets the answer."""
    with here.user.bed.popen(["/usr/bin/python3", "-c", NAME_SERVER], user="root", on="n1") as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        answers = [here.sh(f"client-{node}", f"dig +short +tries=5 from-{node}.example.org").strip() for node in NODES]
        process.terminate()
    assert answers == ["192.0.2.99"] * 2


def test_a_pod_that_is_not_ready_gets_no_traffic(here: Namespace) -> None:
    """And a change of endpoints reaches the other node's rules within a moment."""
    here("label", "pod", "web-n2", "app=resting", "--overwrite")
    try:
        wait_until(
            "web-n1 to be alone",
            lambda: {name for name, _ in fetch(here, "client-n2", "http://both/", times=8)} == {"web-n1"},
            limit=60,
        )
    finally:
        here("label", "pod", "web-n2", "app=web", "--overwrite")
