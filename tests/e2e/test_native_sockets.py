"""Native sockets against the general path: an application must not be able to tell them apart.

Programs run in pods of both kinds, and what they observe is compared: probes of single calls (``sockets/probes.py``),
programs of all sorts as clients and servers, much data, many connections, and both while the server of native sockets
is killed or the hosts' network is cut.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.conftest import Kubectl, make_user
from e2e.namespaces import Namespace, config_map, namespace, pod, service
from pinnace.network.native.profile import ANNOTATION
from pinnace.spec import NodeRecord, NodeServices
from pinnace.spec.records import NodeConnections
from testbed.errors import WaitError
from testbed.waiting import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from e2e.conftest import User
    from testbed import Bed

pytestmark = [pytest.mark.bed, pytest.mark.timeout(600)]

SOURCES = Path(__file__).with_name("sockets")
RESPONDER, LOAD, REACH = ((SOURCES / f"{name}.py").read_text() for name in ("responder", "load", "reach"))
PROBES = {path.name: path.read_text() for path in SOURCES.glob("*.py")}
AT = "/probes"  # where pods have them
PYTHON = "/usr/bin/python3"
HOSTS = ("n1", "n2")  # of the clients and of the servers
KINDS = ("native", "general")
OUTSIDE = "198.51.100.10"
PUBLISHED = 30931
OPEN, CLOSED, FULL = 7000, 7777, 7002  # ports of a responder; nobody listens at the second
LIMIT_OF_PROBES = 20.0  # seconds for those that wait for nobody
PATH_LIMIT = 10.0  # seconds that a call may take when the server of native sockets is killed in it
CUT = 60.0  # seconds
USUAL_LIMIT = 2.0  # seconds that 99 of 100 calls may take
PEER_LIMIT = 0.1  # seconds that a node is waited for by a caller who does not want to wait, until it is known as silent

TRANSLATED = frozenset({"port_that_they_see"})  # kube-proxy, and the general path to the outside, may change it
# What differs, and why it may.
DIFFERENCES = {
    "nonblocking": "the second connect(2) says EISCONN at once: the kernel says 0 first, and every program takes both",
    "connected_twice": "the same",
    "options_set_before": "options that have no effect on TCP are not copied",
    "options_of_the_listener": "the same",
    "disconnected_and_connected_again": "connect(2) with AF_UNSPEC, which no program uses for TCP: it says EISCONN",
    "after_disconnecting_nobody_is_reached_on_the_host": "the same",
    "dup_before_and_the_first_closed": "an epoll set that has a socket by a number that was closed",
    "fork_before_and_the_child_connects": "a socket that two processes have is replaced in the one that connects",
    "accepted_for_both_families": "the socket itself is one of IPv4: options of IPv6 cannot be set for it",
    "signals_while_connecting": "a call that is caught can be interrupted, see docs/limits.md",
    "signals_and_no_blocking": "the same",
    "signals_that_restart_calls": "the same",
    "accepting_interrupted": "the same",
    "interrupted": "the same",
}


# --- the cluster ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(site: Bed) -> Iterator[Kubectl]:
    """One of its own: its network is cut, and what its helpers hold is counted."""
    user = make_user(site, "alice", "sockets")
    words = ["--ports", "41400-41799", "--publish", str(PUBLISHED), "--image", "sockets.tar"]
    user.pinnace("up", "-N", "2", "--name", "sockets", "--mem", "6G", *words)
    yield Kubectl(user=user, cluster="sockets")
    user.pinnace("down", "sockets")


def of_kind(kind: str, manifest: dict[str, Any]) -> dict[str, Any]:
    if kind == "general":
        manifest["metadata"]["annotations"] = {ANNOTATION: "false"}
    return manifest


def with_probes() -> dict[str, Any]:
    """What a pod's manifest needs in addition, to have them."""
    items = [{"key": name, "path": f"e2e/sockets/{name}"} for name in PROBES]
    mounts = {"volumeMounts": [{"name": "probes", "mountPath": AT}], "env": [{"name": "PYTHONPATH", "value": AT}]}
    return {"container": mounts, "volumes": [{"name": "probes", "configMap": {"name": "probes", "items": items}}]}


@pytest.fixture(scope="module")
def here(cluster: Kubectl) -> Iterator[Namespace]:
    with namespace(cluster, "sockets") as here:
        here.create(config_map("probes", **PROBES))
        ports = [{"name": f"p{port}", "port": port} for port in (OPEN, CLOSED, FULL)]
        for kind in KINDS:
            for role, host in zip(("client", "server"), HOSTS, strict=True):
                name, selector = f"{role}-{kind}", {"app": f"{role}-{kind}"}
                here.create(
                    of_kind(kind, pod(name, "python3", "-c", RESPONDER, of="sockets", nodeName=host, **with_probes())),
                    service(name, selector, *ports),
                    service(f"headless-{name}", selector, *ports, clusterIP="None"),
                )
        published = {"port": OPEN, "nodePort": PUBLISHED}
        here.create(service("published", {"app": "server-native"}, published, type="NodePort"))
        here.ready(*(f"{role}-{kind}" for role in ("client", "server") for kind in KINDS))
        yield here


@pytest.fixture(scope="module")
def outside(here: Namespace) -> Iterator[str]:
    """A responder on a host that is not of the cluster."""
    with here.user.bed.popen([PYTHON, "-c", RESPONDER], on="outside") as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield OUTSIDE
        finally:
            process.kill()


def counters(here: Namespace, index: int) -> NodeConnections:
    """How many connections took which path. They are written every five seconds."""
    found = NodeConnections.read(directory(here) / "nodes", index)
    assert found
    return found


def directory(here: Namespace) -> Path:
    return here.user.home / ".local/share/pinnace/clusters" / here.cluster


def python(here: Namespace, name: str, program: str, *words: str, timeout: float = 120) -> str:
    result = here.run("exec", name, "--", "python3", "-c", program, *words, timeout=timeout)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


# --- single calls ---------------------------------------------------------------------------------------------------


def probe(here: Namespace, client: str, host: str, port: int, *groups: str) -> dict[str, Any]:
    command = ["python3", "-m", "e2e.sockets.probes", host, str(port), *groups]
    result = here.run("exec", client, "--", "timeout", "100", *command)
    assert result.returncode == 0, result.stdout + result.stderr
    observed: dict[str, Any] = json.loads(result.stdout)
    assert observed.pop("descriptors") == 0
    return observed


Observations = dict[str, dict[str, Any]]


def compared(found: Observations, but: set[str]) -> Observations:
    """What is not the same in all runs, by the name of the probe."""
    first, *others = found.values()
    return {
        name: {run: observed[name] for run, observed in found.items()}
        for name in first
        if name not in but and any(observed[name] != first[name] for observed in others)
    }


def differences(observe: Callable[[], Observations], but: set[str]) -> Observations:
    """What differs, and does again: a busy machine may stop any process for longer than a probe waits."""
    first = compared(observe(), but)
    again = compared(observe(), but) if first else {}
    return {name: runs for name, runs in again.items() if name in first}


def compare(
    here: Namespace, destinations: dict[str, tuple[str, int]], *groups: str, but: frozenset[str] = frozenset()
) -> None:
    """Run the same probes to all destinations, from pods of both kinds, and compare what they have observed."""
    runs = [(kind, name) for kind in KINDS for name in destinations]

    def observe() -> Observations:
        with ThreadPoolExecutor(2) as pool:
            observed = pool.map(lambda run: probe(here, f"client-{run[0]}", *destinations[run[1]], *groups), runs)
            return dict(zip((" to ".join(run) for run in runs), observed, strict=True))

    different = differences(observe, DIFFERENCES.keys() | but)
    assert not different, json.dumps(different, indent=1)


def at_servers(here: Namespace, port: int) -> dict[str, tuple[str, int]]:
    return {kind: (here.address(f"server-{kind}"), port) for kind in KINDS}


def test_pods_of_another_node(here: Namespace) -> None:
    compare(here, at_servers(here, OPEN), "connecting", "accepting")


def test_pods_of_another_node_whose_port_is_closed_or_whose_queue_is_full(here: Namespace) -> None:
    compare(here, at_servers(here, CLOSED), "refused")
    compare(here, at_servers(here, FULL), "filtered")


def test_services(here: Namespace) -> None:
    names = {f"{prefix}{kind}": f"{prefix}server-{kind}" for prefix in ("", "headless-") for kind in KINDS}
    compare(here, {about: (name, OPEN) for about, name in names.items()}, "connecting", but=TRANSLATED)
    compare(here, {about: (name, CLOSED) for about, name in names.items()}, "refused")


def test_a_pod_that_connects_to_itself_by_its_service(here: Namespace) -> None:
    for kind in KINDS:
        observed = probe(here, f"client-{kind}", f"client-{kind}", OPEN, "connecting")
        assert observed["blocking"] == [True, 0]
        assert observed["much_data_both_ways"] == [0, True]
        assert observed["addresses"]["peer"] == "asked:asked"


def test_pods_of_the_same_node(here: Namespace) -> None:
    """They take the way within the node; the calls are caught all the same."""
    to = {kind: (here.address(f"client-{kind}"), OPEN) for kind in KINDS}
    ends = [("client-general", to["native"]), ("client-native", to["general"])]

    def observe() -> Observations:
        with ThreadPoolExecutor(2) as pool:
            observed = pool.map(lambda end: probe(here, end[0], *end[1], "connecting", "accepting"), ends)
            return dict(zip((client for client, _ in ends), observed, strict=True))

    different = differences(observe, {name for name in DIFFERENCES if "signals" in name or "interrupted" in name})
    assert not different, json.dumps(different, indent=1)


def test_node_ports(here: Namespace) -> None:
    """Of both nodes, by their addresses in the cluster and on the hosts' network."""
    records = [NodeRecord.read(directory(here) / "nodes" / f"{index}.json") for index in range(len(HOSTS))]
    for address in [record.address for record in records if record]:
        for kind in KINDS:
            observed = probe(here, f"client-{kind}", address, PUBLISHED, "connecting")
            assert observed["blocking"] == [True, 0], (address, kind)
            assert observed["much_data_both_ways"] == [0, True]


def test_the_outside(here: Namespace, outside: str) -> None:
    compare(here, {"outside": (outside, OPEN)}, "connecting", but=TRANSLATED)


def test_the_outside_whose_port_is_closed_or_whose_queue_is_full(here: Namespace, outside: str) -> None:
    """As the kernel has it. On the general path such a connection is accepted, and reset (docs/limits.md)."""
    at_once, again, *_ = probe(here, "client-native", outside, CLOSED, "refused")["refused"]
    assert (at_once, again) == ("ECONNREFUSED", "ECONNREFUSED")
    begin = time.monotonic()
    probe(here, "client-native", outside, FULL, "filtered")
    assert time.monotonic() - begin < LIMIT_OF_PROBES


def test_addresses_that_nobody_has(here: Namespace) -> None:
    network, _, _ = here.address("server-native").rpartition(".")
    compare(here, {"pod": (f"{network}.250", OPEN)}, "dead")
    compare(here, {"outside": ("198.51.100.99", OPEN)}, "dead")


# --- a pod's socket is the host's, and reaches nothing of the host's -------------------------------------------------


def test_a_native_socket_does_not_lead_to_the_hosts_own_addresses(here: Namespace) -> None:
    """By sockets that were connected once, and in calls that are not caught."""
    listen = (
        "import socket\nlistener = socket.create_server(('127.0.0.1', 0))\n"
        "print(listener.getsockname()[1], flush=True)\nlistener.accept()\nprint('reached', flush=True)"
    )
    with here.user.bed.popen([PYTHON, "-c", listen], user="root", on="n1") as victim:
        try:
            assert victim.stdout
            port = victim.stdout.readline().strip()
            said = python(here, "client-native", REACH, here.address("server-native"), str(OPEN), port)
            assert json.loads(said) == []
        finally:
            victim.kill()
        assert victim.stdout.read() == ""


def test_a_namespace_within_a_pod_has_no_other_pods_address(here: Namespace) -> None:
    connect = (
        "import socket, sys\n"
        "try: print(socket.create_connection((sys.argv[1], 7000), 3).getsockname())\n"
        "except OSError as error: print(error.errno)"
    )
    script = f'ip link set lo up; ip addr add {here.address("client-general")}/32 dev lo; python3 -c "$0" $1'
    words = ["unshare", "-Urn", "sh", "-c", script, connect, here.address("server-native")]
    result = here.run("exec", "client-native", "--", *words)
    assert result.stdout.strip() in {"101", "113"} or "unshare" in result.stderr, result.stdout + result.stderr


OLD_CALL = """
import ctypes, mmap, platform
if platform.machine() == "x86_64":
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("b814000000cd80c3"))  # getpid(2) as a program of 32 bits calls it
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    assert function() > 0
print("alive")
"""


def test_programs_of_32_bits_live(here: Namespace) -> None:
    assert python(here, "client-native", OLD_CALL) == "alive\n"


# --- programs -------------------------------------------------------------------------------------------------------

NGINX = """\
pid /tmp/nginx.pid; error_log stderr; worker_processes 1;
events {}
http {
    access_log off;
    client_body_temp_path /tmp/body; proxy_temp_path /tmp/proxy; fastcgi_temp_path /tmp/fastcgi;
    uwsgi_temp_path /tmp/uwsgi; scgi_temp_path /tmp/scgi;
    server { listen 8008 deferred; root /usr/share/nginx/html; }
    server { listen 8009; location / { proxy_pass http://BEHIND:8006; } }
}
"""
SERVERS = """\
cd /tmp
python3 -c "$LOAD" serve 8001 &
lines-glibc serve 8002 &
lines-musl serve 8003 &
lines-go serve 8004 &
lines-node serve 8010 &
lines-java serve 8011 &
busybox httpd -p 8006 -h /usr/share/nginx/html
echo "$CONF" > nginx.conf
nginx -c /tmp/nginx.conf
redis-server --port 6379 --bind 0.0.0.0 --protected-mode no --save '' > /dev/null &
export PATH=$PATH:/usr/lib/postgresql/15/bin
initdb -D data -A trust -N > /dev/null
echo "host all all all trust" >> data/pg_hba.conf
exec postgres -D data -k /tmp -c listen_addresses=0.0.0.0 -c fsync=off
"""
LINE_PORTS = {
    "asyncio": 8001, "glibc": 8002, "musl": 8003, "go": 8004,
    "node": 8010, "java, blocking": 8011, "java, a selector": 8012, "netty": 8013,
}  # fmt: skip
ALL_LINE_PORTS = " ".join(map(str, LINE_PORTS.values()))
LINE_CLIENTS = {
    "asyncio": 'python3 -c "$LOAD" ask $HOST {} 20',
    "glibc": "lines-glibc ask $HOST {} 20",
    "musl": "lines-musl ask $HOST {} 20",
    "go": "lines-go ask $HOST {} 20",
}
# Those whose start takes longest ask all servers, Java by blocking sockets, a selector and Netty.
PATIENT_CLIENTS = {
    "node": f"lines-node ask $HOST 20 {ALL_LINE_PORTS}",
    "java": f"lines-java ask $HOST 20 {ALL_LINE_PORTS}",
}
LINE_KINDS = len(LINE_CLIENTS) + 1 + 3
PAGE_PORTS = {"go": 8005, "busybox": 8006, "nginx": 8008}
PAGE_CLIENTS = {
    "go": "lines-go get $HOST {} 20",
    "busybox": "for i in 1 2 3 4 5; do busybox wget -q -O /dev/null http://$HOST:{}/ || exit 1; done",
    "python": "python3 -c 'import sys, urllib.request as r; [r.urlopen(sys.argv[1]).read() for _ in range(20)]' "
    "http://$HOST:{}/",
}
DATABASES = {
    "redis": 'redis-benchmark -h $HOST -n 2000 -c 20 -q -t ping,set && test "$(redis-cli -h $HOST ping)" = PONG',
    "redis, a connection for each request": "redis-benchmark -h $HOST -n 300 -c 10 -k 0 -q -t ping",
    "postgres": "/usr/lib/postgresql/15/bin/pgbench -h $HOST -U user -i -q postgres && "
    "/usr/lib/postgresql/15/bin/pgbench -h $HOST -U user -n -C -c 4 -t 10 postgres",
}
# It puts its sockets into an epoll set before it connects them.
PROXY = (
    'cd /tmp && echo "$CONF" | sed s/BEHIND/$HOST/ > nginx.conf && nginx -c /tmp/nginx.conf && '
    "for i in 1 2 3 4 5; do busybox wget -q -O /dev/null http://127.0.0.1:8009/ || exit 1; done; "
    "kill $(cat /tmp/nginx.pid)"
)
PAIRS = {
    **{f"lines {client} {server}": command.format(port)
       for client, command in LINE_CLIENTS.items() for server, port in LINE_PORTS.items()},
    **{f"pages {client} {server}": command.format(port)
       for client, command in PAGE_CLIENTS.items() for server, port in PAGE_PORTS.items()},
    **{f"lines {client}": command for client, command in PATIENT_CLIENTS.items()},
    **DATABASES,
    "nginx as a proxy": PROXY,
}  # fmt: skip
RUN_PAIRS = """
import json, os, subprocess, sys
failed = {}
for name, command in json.loads(os.environ["PAIRS"]).items():
    argv = ["timeout", "60", "sh", "-c", command]
    result = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode:
        failed[name] = (result.stdout + result.stderr)[-300:] or result.returncode
print(json.dumps(failed))
"""


@pytest.fixture(scope="module")
def programs(here: Namespace) -> Namespace:
    """Pods with all programs, as clients on the first node and as servers on the second."""
    variables = {"LOAD": LOAD, "CONF": NGINX, "PAIRS": json.dumps(PAIRS)}
    container = {"env": [{"name": name, "value": value} for name, value in variables.items()]}
    serve = SERVERS.replace('echo "$CONF"', 'echo "$CONF" | sed s/BEHIND/127.0.0.1/')
    for kind in KINDS:
        for role, host, command in (("user", "n1", ["sleep", "3600"]), ("programs", "n2", ["sh", "-c", serve])):
            more: dict[str, Any] = {"nodeName": host, "securityContext": {"runAsUser": 1000}}
            here.create(of_kind(kind, pod(f"{role}-{kind}", *command, of="sockets", container=container, **more)))
    here.ready(*(f"{role}-{kind}" for role in ("user", "programs") for kind in KINDS))
    ready = (
        "for port in 6379 5432 8010 8013; do until (exec 3<> /dev/tcp/$1/$port); do sleep 0.1; done; done 2> /dev/null"
    )
    for kind in KINDS:
        here("exec", "user-general", "--", "sh", "-c", ready, "ready", here.address(f"programs-{kind}"))
    return here


def run_pairs(here: Namespace, client: str, server: str) -> dict[str, str]:
    command = ["env", f"HOST={here.address(f'programs-{server}')}", "python3", "-c", RUN_PAIRS]
    failed: dict[str, str] = json.loads(here("exec", f"user-{client}", "--", *command, timeout=300))
    return failed


def test_programs_with_programs(programs: Namespace) -> None:
    """All that speak the same language with each other, on either path at either end."""
    before = [counters(programs, index) for index in range(len(HOSTS))]
    with ThreadPoolExecutor(2) as pool:
        ends = [(client, server) for client in KINDS for server in KINDS]
        failed = dict(zip(ends, pool.map(lambda end: run_pairs(programs, *end), ends), strict=True))
    assert not any(failed.values()), failed
    time.sleep(REPORTED)
    client, server = (counters(programs, index) for index in range(len(HOSTS)))
    lines = 20 * LINE_KINDS * len(LINE_PORTS)
    assert client.pods - before[0].pods > lines, "of the native pods with each other"
    assert server.accepted - before[1].accepted > lines
    assert server.spliced == before[1].spliced
    assert client.general > before[0].general, "nginx as a proxy, and servers in pods of the general path"


# --- in numbers -----------------------------------------------------------------------------------------------------

REPORTED = 6.0  # seconds after which the counters are on the disk


def load(here: Namespace, mode: str, *words: str, timeout: float = 240) -> str:
    return python(here, "client-native", LOAD, mode, *words, timeout=timeout)


def helper(here: Namespace, index: int) -> int:
    """The server of native sockets on a node, by its pid on the host."""
    found = NodeServices.read(directory(here) / "nodes", index)
    assert found
    [pid] = [service.pid for service in found.services if service.name == "sockets"]
    assert pid
    return pid


def on_host(here: Namespace, index: int, *argv: str) -> str:
    return here.user.bed.run(argv, user="root", on=HOSTS[index], timeout=30).stdout


def held(here: Namespace, index: int) -> int:
    """How many descriptors the server of native sockets has, beside those of the threads that it remembers."""
    command = ["find", f"/proc/{helper(here, index)}/fd", "-type", "l", "-printf", "%l\n"]
    links = on_host(here, index, *command).splitlines()
    of_threads = [link for link in links if "pidfd" in link or link.startswith("/proc/")]
    assert len(of_threads) <= 2 * REMEMBERED_THREADS + OWN_PROCESSES
    return len(links) - len(of_threads)


def memory(here: Namespace, index: int) -> int:
    """MiB."""
    status = on_host(here, index, "cat", f"/proc/{helper(here, index)}/status")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) >> 10


def used_ports(here: Namespace) -> int:
    """How many ports of the clients' host, towards the servers', are not free yet although their connections ended."""
    servers = str(here.user.bed.plan.host(HOSTS[1]).address)
    return len(on_host(here, 0, "ss", "-tnH", "state", "time-wait", "dst", servers).splitlines())


@pytest.fixture
def nothing_left(programs: Namespace) -> Iterator[None]:
    """No descriptor of the servers, nor of the pods, is left afterwards."""
    before = [held(programs, index) for index in range(len(HOSTS))]
    yield
    after: list[int] = []

    def too_many() -> bool:
        return any(now > then + FLUCTUATION for now, then in zip(after, before, strict=True))

    def closed() -> bool:  # spare connections end after two seconds
        after[:] = [held(programs, index) for index in range(len(HOSTS))]
        return not too_many()

    with contextlib.suppress(WaitError):
        wait_until("descriptors to be closed", closed, limit=30, interval=0.5)
    assert not too_many(), (before, after)
    assert max(memory(programs, index) for index in range(len(HOSTS))) < MOST_MEMORY


FLUCTUATION = 3  # descriptors: a spare connection, and sockets of the node's network that are on their way
REMEMBERED_THREADS = 64  # KNOWN in target.c
OWN_PROCESSES = 8  # of the node, at most, whose end the server waits for
MOST_MEMORY = 100  # MiB of a server


@pytest.mark.parametrize("mebibytes", [1024])
def test_a_gibibyte_with_checksums(here: Namespace, mebibytes: int) -> None:
    load(here, "stream", here.address("server-native"), str(OPEN), str(mebibytes))


@pytest.mark.usefixtures("nothing_left")
def test_a_thousand_connections_at_once(programs: Namespace) -> None:
    load(programs, "many", programs.address("programs-native"), "8001", "1000")


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("count", [10_000])
def test_thousands_of_short_connections(programs: Namespace, count: int) -> None:
    before = used_ports(programs)
    said = json.loads(load(programs, "short", programs.address("programs-native"), "8004", str(count)))
    assert said["failed"] == {}
    assert said["usual"] < USUAL_LIMIT, said
    assert said["slowest"] < PATH_LIMIT, said
    assert used_ports(programs) - before < count / 2, "they were not used again"


# --- faults ---------------------------------------------------------------------------------------------------------


def kill_server(here: Namespace, index: int) -> None:
    on_host(here, index, "kill", "-9", str(helper(here, index)))


def lines_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout
    assert process.stderr
    said = process.stdout.read()
    assert process.wait(60) == 0, process.stderr.read()
    found: dict[str, Any] = json.loads(said)
    return found


def holding(here: Namespace, port: int, seconds: float) -> subprocess.Popen[str]:
    """A connection that is used all the time."""
    words = ["hold", here.address("programs-native"), str(port), str(seconds)]
    process = here.popen("exec", "client-native", "--", "python3", "-c", LOAD, *words)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=[pytest.mark.stress, pytest.mark.timeout(1200)])])
def test_the_server_is_killed(programs: Namespace, kills: int) -> None:
    """On either node, while connections are made and others wait to be accepted. Those that are made go on."""
    seconds = 2.0 * kills + 4
    with holding(programs, 8002, seconds) as held_one, ThreadPoolExecutor(1) as pool:
        address = programs.address("programs-native")
        made = pool.submit(load, programs, "short", address, "8002", str(300 * kills), timeout=60 + 5 * kills)
        for number in range(kills):
            time.sleep(1.5)
            kill_server(programs, number % len(HOSTS))
        said = json.loads(made.result())
        gone_on = lines_of(held_one)
    assert gone_on["pause"] < PATH_LIMIT, gone_on
    # One that was on its way to be accepted ends with the server: its client sees a reset or an end, never other bytes.
    assert set(said["failed"]) <= {"ConnectionResetError", "an end", "BrokenPipeError"}, said
    assert sum(said["failed"].values()) <= 10 * kills, said
    assert said["slowest"] < PATH_LIMIT, said
    after = json.loads(load(programs, "short", address, "8002", "200"))
    assert after["failed"] == {}


@contextlib.contextmanager
def apart(here: Namespace) -> Iterator[None]:
    """Drop what the hosts send to each other. Slurm, which would end a host's part of the job, still reaches both."""
    bed = here.user.bed
    for host, other in (HOSTS, HOSTS[::-1]):
        drop = f"type filter hook input priority raw; ip saddr {bed.plan.host(other).address} drop;"
        table = f"table inet apart {{\n  chain input {{ {drop} }}\n}}\n"
        bed.run(["nft", "-f", "-"], user="root", on=host, input=table)
    try:
        yield
    finally:
        for host in HOSTS:
            bed.run(["nft", "delete", "table", "inet", "apart"], user="root", on=host)


def test_the_hosts_network_is_cut_for_a_minute_under_load(programs: Namespace) -> None:
    """Nothing is lost: the kernels send again. New connections do not hold up a program that does not block."""
    address = programs.address("programs-native")
    attempts = (
        "import socket, time\nfor _ in range(30):\n    sock = socket.socket()\n    sock.setblocking(False)\n"
        f"    begin = time.monotonic()\n    sock.connect_ex(('{address}', 8002))\n    print(time.monotonic() - begin)"
    )
    with holding(programs, 8002, CUT + 8) as held_one:
        time.sleep(1)
        with apart(programs):
            spent = [float(line) for line in python(programs, "client-native", attempts).splitlines()]
            time.sleep(CUT)
        programs("wait", "--for=condition=Ready", "node/n2", "--timeout=120s")
        gone_on = lines_of(held_one)
    assert statistics.median(spent) < PEER_LIMIT, spent
    assert sum(spent) < PATH_LIMIT, spent
    assert gone_on["pause"] > CUT - 1
    said = json.loads(load(programs, "short", address, "8002", "100"))
    assert said["failed"] == {}


# --- strangers ------------------------------------------------------------------------------------------------------

STRANGER = """
import os, socket, struct, sys
host, port, pod, pod_port = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
request = socket.inet_aton(pod) + struct.pack("!H", pod_port) + socket.inet_aton(pod) + struct.pack("!Hc", 1, b"!")
answers = set()
for number in range(300):
    with socket.create_connection((host, port), timeout=10) as sock:
        try:
            nonce = sock.recv(32, socket.MSG_WAITALL)
            message = struct.pack("!I", number % 3) + os.urandom(32) + os.urandom(32) + request
            sock.sendall(message[: number % 120] if number % 2 else message + b"who\\n" * number)
            if number % 2:
                sock.shutdown(socket.SHUT_WR)
            answers.add(sock.recv(100))
        except OSError as error:  # a reset may come at any moment
            answers.add(type(error).__name__.encode())
print(sorted(answers))
"""


@pytest.mark.usefixtures("nothing_left")
def test_a_stranger_reaches_no_pod_by_the_port_of_native_sockets(programs: Namespace, bob: User) -> None:
    record = NodeRecord.read(directory(programs) / "nodes" / "1.json")
    assert record
    words = [record.address, str(record.sockets), programs.address("server-native"), str(OPEN)]
    said = bob.run(PYTHON, "-c", STRANGER, *words).stdout
    assert set(said.strip("[]\n").split(", ")) <= {
        "b'ConnectionResetError'",
        "b'BrokenPipeError'",
        "b'OSError'",
        "b''",
    }, said
    load(programs, "many", programs.address("programs-native"), "8001", "50")
