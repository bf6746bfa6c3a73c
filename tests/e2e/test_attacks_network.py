"""Attacks by another user of the same hosts, over the network and on the hosts, and by a pod on the network.

The owner is alice with the cluster that all tests share, the other user is bob. After each attack the cluster works,
none of its processes was started again, and what its helpers hold is bounded (the fixture ``unharmed``).
"""

from __future__ import annotations

import contextlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.conftest import PUBLISHED
from e2e.namespaces import Namespace, namespace, pod, service
from pinnace.spec import NodeRecord, NodeState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.conftest import Kubectl, User

pytestmark = [pytest.mark.bed, pytest.mark.timeout(600)]

ATTACKER = Path(__file__).with_name("attacker.py").read_text()
PYTHON = "/usr/bin/python3"
HOSTS = ("n1", "n2")
MOST_THREADS = 300  # of a helper: one for each node that there may be, and a few
MOST_MEMORY = 300 << 10  # KiB of a helper
FLOOD = 5000  # connections at each port
FLOOD_SECONDS = 180  # no longer, whatever happens
FLOOD_HELD = 60  # seconds for which all of them are held at least

# Echoes lines; asked for much, it sends without an end.
ECHO = """
import asyncio, resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
async def echo(reader, writer):
    try:
        while line := await reader.readline():
            if line == b"much\\n":
                while True:
                    writer.write(bytes(65536))
                    await writer.drain()
            writer.write(line)
            await writer.drain()
    except (OSError, ValueError):
        pass
    finally:
        writer.close()
async def main():
    async with await asyncio.start_server(echo, "0.0.0.0", 8080, backlog=4096) as server:
        print("ready", flush=True)
        await server.serve_forever()
asyncio.run(main())
"""
# So many connections at once, each of which must carry a line both ways while all the others are open.
CLIENT = """
import asyncio, resource, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
together = asyncio.Barrier(count)
async def one(number):
    reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), 60)
    for round in range(2):
        line = f"{number} {round}\\n".encode()
        writer.write(line)
        assert await asyncio.wait_for(reader.readline(), 60) == line
        await asyncio.wait_for(together.wait(), 60)
    writer.close()
async def main():
    await asyncio.gather(*(one(number) for number in range(count)))
    print("all", count)
asyncio.run(main())
"""
# A line to each host and back; what socat says of it, its exit code and the seconds go to standard error.
WORKS = """
worst=0
for to; do
    begin=$(date +%s)
    echo hello | socat -t 30 - TCP:$to:8080
    code=$?
    echo "$to: code $code after $(($(date +%s) - begin)) s" >&2
    [ $code = 0 ] || worst=$code
done
exit $worst
"""


def python_pod(name: str, node: str, program: str = "import time; time.sleep(3600)") -> dict[str, Any]:
    return pod(name, "python3", "-c", program, of="python", nodeName=node)


@dataclass(frozen=True)
class Target:
    """A port that can be reached on the hosts' network."""

    address: str
    port: int
    purpose: str

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


@pytest.fixture(scope="module")
def here(cluster: Kubectl) -> Iterator[Namespace]:
    with namespace(cluster, "attacks") as here:
        port = {"port": 8080, "nodePort": PUBLISHED}
        here.create(
            python_pod("server", "n2", ECHO),
            python_pod("client", "n1"),
            pod("tools", of="nettools", nodeName="n1"),
            service("server", {"app": "server"}, port, type="NodePort"),
        )
        here.ready("server", "client", "tools")
        yield here


@pytest.fixture(scope="module")
def targets(here: Namespace) -> list[Target]:
    """All that listens on the hosts' network, as `pinnace status` says."""
    rows = json.loads(here.user.pinnace("status", here.cluster, "-o", "json").stdout)["listening"]
    return [Target(row["address"], row["port"], row["purpose"]) for row in rows]


def api_of(targets: list[Target]) -> Target:
    (found,) = [target for target in targets if "API" in target.purpose]
    return found


def links_of(targets: list[Target]) -> list[Target]:
    """Where nodes reach each other: of their links, and of native sockets."""
    return [target for target in targets if "links" in target.purpose or "native" in target.purpose]


def helpers(user: User) -> dict[tuple[str, int], tuple[int, int]]:
    """The agents of the shared cluster and their helpers: host and pid, with the threads and memory (KiB) of each."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for host in HOSTS:
        listing = user.bed.run(["ps", "-eo", "pid,ppid,nlwp,rss,args", "--no-headers"], user="root", on=host).stdout
        rows = [line.split(maxsplit=4) for line in listing.splitlines()]
        ours = {row[0]: row for row in rows if "pinnace.node" in row[4] and row[4].endswith("clusters/shared")}
        agents = {pid for pid, row in ours.items() if row[1] not in ours}
        for pid, parent, threads, memory, _ in ours.values():
            if pid in agents or parent in agents:
                found[host, int(pid)] = int(threads), int(memory)
    assert len(found) >= 2 * 4, "an agent, a monitor, links and a proxy on each host"
    return found


def works(here: Namespace) -> None:
    """The API, exec, a Service and traffic between nodes. If not, it shows what each connection came to."""
    address = here.address("server")
    name = f"server.{here.name}.svc.cluster.local"
    asked = here.run("exec", "tools", "--", "sh", "-c", WORKS, "works", address, name)
    assert (asked.returncode, asked.stdout) == (0, "hello\nhello\n"), asked.stderr


@pytest.fixture(autouse=True)
def unharmed(here: Namespace) -> Iterator[None]:
    before = helpers(here.user)
    yield
    works(here)
    after = helpers(here.user)
    assert set(after) == set(before), "none has ended, and none was started again"
    assert max(threads for threads, _ in after.values()) <= MOST_THREADS
    assert max(memory for _, memory in after.values()) <= MOST_MEMORY


@contextlib.contextmanager
def attack(user: User, mode: str, count: int, seconds: float, target: Target, on: str = "login") -> Iterator[None]:
    """Hold connections to a port, as this user, while something else is done."""
    argv = [PYTHON, "-c", ATTACKER, mode, str(count), str(seconds), str(target)]
    with user.bed.popen(argv, user=user.name, on=on) as process:
        try:
            assert process.stdout
            assert process.stderr
            assert process.stdout.readline() == "ready\n", process.stderr.read()
            yield
            assert process.poll() is None or process.returncode == 0
        finally:
            process.kill()


# --- files and the working directory --------------------------------------------------------------------------------

PLANTED = ("pinnace/__init__.py", "argparse.py", "json.py", "runpy.py", "os.py", "sitecustomize.py")
PLANT = 'mkdir -p {0}/pinnace && for name in {1}; do echo \'open("/tmp/caught", "w")\' > {0}/$name; done'


@pytest.mark.parametrize("where", ["/tmp", "/home/bob/project"])
def test_code_that_another_user_has_planted_is_not_run(alice: User, bob: User, where: str) -> None:
    """In /tmp of a host, where jobs begin whose directory is not there; and in a directory that is shared."""
    bob.run("sh", "-c", PLANT.format(where, " ".join(PLANTED)), on="n3")
    bob.run("chmod", "a+rx", "/home/bob")
    alice.run("mkdir", "-p", "/tmp/only-here")
    alice.write("hello.sh", "#!/bin/sh\nkubectl get nodes -o name\n", 0o755)
    directory = where if where != "/tmp" else "/tmp/only-here"
    for words in (["run", "-w", "n3", "/home/alice/hello.sh"], ["doctor", "-w", "n3"]):
        result = alice.bed.run(["pinnace", *words], cwd=directory, check=False, timeout=120)
        assert result.returncode == 0, result.stdout + result.stderr
    for host in ("login", "n3"):
        assert bob.run("ls", "/tmp/caught", on=host, code=None).returncode != 0, f"alice has run bob's code on {host}"
    bob.run("sh", "-c", f"cd {where} && rm -r pinnace {' '.join(PLANTED[1:])}", on="n3")
    alice.run("rmdir", "/tmp/only-here")


TAKE_NAMES = """
import os, sys, time
print("ready", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    for name in os.listdir("/tmp"):
        if name.startswith(".pinnace-"):
            try:
                os.close(os.open("/tmp/" + name[1:], os.O_CREAT | os.O_EXCL))
            except OSError:
                pass
"""


def test_names_in_tmp_that_another_user_takes_while_a_node_starts(alice: User, bob: User) -> None:
    script = alice.write("hello.sh", "#!/bin/sh\nkubectl get nodes -o name\n", 0o755)
    with bob.bed.popen([PYTHON, "-c", TAKE_NAMES], user="bob", on="n3") as taking:
        try:
            assert taking.stdout
            assert taking.stdout.readline() == "ready\n"
            for _ in range(2):
                assert alice.pinnace("run", "-w", "n3", script).stdout == "node/n3\n"
        finally:
            taking.kill()
    bob.run("sh", "-c", "rm -f /tmp/pinnace-*", on="n3", code=None)


def test_no_secret_can_be_seen_from_outside(here: Namespace, bob: User) -> None:
    """Not on a command line, in an environment or a file of the hosts, nor through the processes themselves."""
    directory = here.user.home / ".local/share/pinnace/clusters" / here.cluster
    secrets = [
        (directory / "secrets/api.name").read_text(),
        json.loads((directory / "kubeconfig").read_text())["users"][0]["user"]["client-key-data"],
        (directory / "secrets/link.key").read_bytes().hex(),
    ]
    look = (
        "ps -ewwo args; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; "
        "find /tmp /run /home /var/tmp -type f -readable -size -2M -newermt '-1 day' -not -path '/home/bob/*' "
        "-exec cat {} + 2>/dev/null; true"
    )
    for host in ("login", *HOSTS):
        seen = bob.bed.run(["sh", "-c", look], user="bob", on=host, check=False, timeout=120).stdout
        assert seen
        assert not [secret for secret in secrets if secret in seen]
        opened = "ls /proc/[0-9]*/fd /proc/[0-9]*/root /proc/[0-9]*/ns 2>/dev/null | grep -c pinnace; true"
        assert bob.run("sh", "-c", opened, on=host).stdout.strip() == "0"


def test_no_socket_of_ours_is_open_to_other_users_of_the_host(here: Namespace, bob: User) -> None:
    """Neither abstract ones, which have no permissions, nor ports of the loopback interface or of another address."""
    for host in HOSTS:
        assert "containerd" not in bob.run("cat", "/proc/net/unix", on=host).stdout
        listening = here.user.bed.run(
            ["ss", "--tcp", "--udp", "--listening", "--numeric", "--processes", "--no-header"], user="root", on=host
        ).stdout
        own = {row.split()[4] for row in listening.splitlines() if "slurm" not in row and "srun" not in row}
        about = json.loads(here.user.pinnace("status", here.cluster, "-o", "json").stdout)["listening"]
        known = {f"{row['address']}:{row['port']}" for row in about if row["node"] == host}
        assert known <= own
        ours = {f":{port}" for port in (PUBLISHED, *range(41000, 41400))}
        assert {entry for entry in own if any(entry.endswith(port) for port in ours)} == known


# --- floods ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["churn", "garbage"])
def test_connections_that_end_at_once_and_garbage(bob: User, targets: list[Target], mode: str) -> None:
    with contextlib.ExitStack() as stack:
        for target in targets:
            stack.enter_context(attack(bob, mode, 1000, 3, target))


@pytest.mark.parametrize("mode", ["half", "urgent"])
def test_bytes_that_could_keep_a_loop_awake(here: Namespace, bob: User, targets: list[Target], mode: str) -> None:
    """The kernel says for as long as such connections are held that there is something to read."""
    seconds = 4.0
    with contextlib.ExitStack() as stack:
        for target in targets:
            stack.enter_context(attack(bob, mode, 20, 20, target))
        time.sleep(1)  # each is looked at once
        before = cpu_seconds(here.user)
        time.sleep(seconds)
        spent = {who: now - before[who] for who, now in cpu_seconds(here.user).items()}
    assert max(spent.values()) < seconds / 2, spent


def cpu_seconds(user: User) -> dict[tuple[str, int], float]:
    """What the helpers have used of a processor."""
    used = {}
    for host, pid in helpers(user):
        fields = user.bed.run(["cat", f"/proc/{pid}/stat"], user="root", on=host).stdout.rpartition(")")[2].split()
        used[host, pid] = (int(fields[11]) + int(fields[12])) / 100
    return used


def test_one_byte_now_and_then_holds_nothing_for_long(bob: User, targets: list[Target]) -> None:
    """A time limit for each byte would let a stranger hold a place for minutes."""
    for target in (api_of(targets), *links_of(targets)):
        script = (
            "import socket, sys, time\n"
            "sock, begin = socket.create_connection((sys.argv[1], int(sys.argv[2]))), time.monotonic()\n"
            "try:\n"
            "    while time.monotonic() < begin + 40: sock.send(b'\\x16'); time.sleep(0.5)\n"
            "except OSError: pass\n"
            "print(time.monotonic() - begin)"
        )
        held = float(bob.run(PYTHON, "-c", script, target.address, str(target.port)).stdout)
        assert held < 20, target


def test_whoever_asks_for_much_and_reads_nothing_holds_up_nobody(here: Namespace, bob: User) -> None:
    """Each fills a pipe of the proxy's."""
    target = Target(address_of(here.user, "n1"), PUBLISHED, "")
    with attack(bob, "greedy", 300, 8, target):
        begin = time.monotonic()
        assert through_the_port(here.user, target, 20) == "all 20\n"
        works(here)
        assert time.monotonic() - begin < 60


def address_of(user: User, host: str) -> str:
    rows = json.loads(user.pinnace("status", "shared", "-o", "json").stdout)["listening"]
    return str(next(row["address"] for row in rows if row["node"] == host))


def through_the_port(user: User, target: Target, count: int, on: str = "login") -> str:
    return user.run(PYTHON, "-c", CLIENT, target.address, str(target.port), str(count), on=on).stdout


def test_thousands_of_idle_connections_at_every_port_and_everything_goes_on(
    here: Namespace, alice: User, bob: User, targets: list[Target]
) -> None:
    """The owner's API calls, exec, traffic between nodes and to the outside, and what strangers are welcome to."""
    published = [target for target in targets if target.port == PUBLISHED]
    assert len(targets) == 7
    flooded_until = time.monotonic() + FLOOD_SECONDS
    with contextlib.ExitStack() as stack:
        for target in targets:
            stack.enter_context(attack(bob, "mixed", FLOOD, FLOOD_SECONDS, target, on="login"))
        outside = stack.enter_context(alice.bed.popen([PYTHON, "-c", ECHO], on="outside"))
        stack.callback(outside.kill)
        assert outside.stdout
        assert outside.stdout.readline() == "ready\n"
        with ThreadPoolExecutor(3) as pool:
            out = pool.submit(here, "exec", "client", "--", "python3", "-c", CLIENT, "198.51.100.10", "8080", "1000")
            through = pool.submit(through_the_port, alice, published[0], 500, "n3")
            rounds, begin = 0, time.monotonic()
            while rounds < 3 or time.monotonic() < begin + FLOOD_HELD or not (out.done() and through.done()):
                asked = time.monotonic()
                here("get", "nodes", timeout=60)
                works(here)
                assert time.monotonic() - asked < 45
                rounds += 1
            assert time.monotonic() < flooded_until, "all that was done while they were held"
            assert out.result() == "all 1000\n"
            assert through.result() == "all 500\n"


# --- the links ------------------------------------------------------------------------------------------------------

FRAMES = """
import os, socket, struct, sys
sent = 0
for round in range(100):
    try:
        with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5) as sock:
            for kind in range(1000):
                length = (0, 1, 0xFFFFFFFF, 65546, len(b"x" * 60))[kind % 5]
                sock.sendall(struct.pack("!I", length) + os.urandom(60))
                sent += 1
    except OSError:
        pass
print(round + 1)
"""


def test_malformed_frames_of_a_stranger(bob: User, targets: list[Target]) -> None:
    for target in links_of(targets):
        assert bob.run(PYTHON, "-c", FRAMES, target.address, str(target.port)).stdout == "100\n"


PACKETS = """
import os, socket, struct, sys
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
sent = 0
for number in range(100000):
    to = sys.argv[1 + number % len(sys.argv[1:])]
    source = socket.inet_aton("0.0.0.0")
    body = os.urandom(number % 60)
    kind = (1, 6, 17, 132, 255, 0)[number % 6]
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(body), number & 0xFFFF, (0, 0x2000, 0x1FFF)[number % 3],
                         number % 256, kind, 0, source, socket.inet_aton(to))
    try:
        raw.sendto(header + body, (to, 0))
        sent += 1
    except OSError:
        pass
print(sent)
"""


def test_a_hundred_thousand_malformed_packets_of_a_pod(here: Namespace) -> None:
    """To a pod of another node, to a node, to the outside, to the name server's address, and to nobody."""
    to = [here.address("server"), "10.42.0.2", "198.51.100.10", "10.42.255.254", "10.42.99.99"]
    sent = int(here("exec", "client", "--", "python3", "-c", PACKETS, *to))
    assert sent > 50_000


SCAN = """
import socket
sock = socket.socket(type=socket.SOCK_DGRAM)
sock.setblocking(False)
for network in ("10.42", "10.244"):
    for number in range(65536):
        try:
            sock.sendto(b"x", (f"{network}.{number >> 8}.{number & 255}", 9))
        except OSError:
            pass
print("scanned")
"""


def test_a_pod_that_tries_every_address_of_nodes_and_pods(here: Namespace) -> None:
    assert here("exec", "client", "--", "python3", "-c", SCAN) == "scanned\n"
    assert max(threads for threads, _ in helpers(here.user).values()) <= 30, "no more than for the nodes that there are"


LARGE_SCAN = """
import socket
sock = socket.socket(type=socket.SOCK_DGRAM)
for number in range(4, 254):
    for _ in range(60):
        sock.sendto(bytes(60000), (f"10.244.{number}.9", 9))
print("scanned")
"""


def test_large_packets_of_a_pod_to_nodes_that_are_not_there(here: Namespace) -> None:
    """They wait for a node, in memory that is not the pod's."""
    assert here("exec", "client", "--", "python3", "-c", LARGE_SCAN) == "scanned\n"
    assert max(memory for _, memory in helpers(here.user).values()) <= MOST_MEMORY


SPOOF = """
import socket, struct, sys
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
to, own = sys.argv[1], sys.argv[2]
for source in ("10.244.1.77", "10.42.0.2", "198.51.100.10", own):
    body = source.encode()
    packet = struct.pack("!BBHHHBBH4s4sHHHH", 0x45, 0, 28 + len(body), 1, 0, 64, 17, 0, socket.inet_aton(source),
                         socket.inet_aton(to), 999, 9000, 8 + len(body), 0) + body
    raw.sendto(packet, (to, 0))
"""
HEAR = """
import socket
sock = socket.socket(type=socket.SOCK_DGRAM)
sock.bind(("0.0.0.0", 9000))
print("ready", flush=True)
sock.settimeout(60)
try:
    while True:
        said, where = sock.recvfrom(99)
        print(said.decode(), where[0], flush=True)
        sock.settimeout(1)
except TimeoutError:
    pass
"""


def test_a_pod_cannot_send_to_other_nodes_under_an_address_that_is_not_its_nodes(here: Namespace) -> None:
    own, to = here.address("client"), here.address("server")
    with here.popen("exec", "server", "--", "python3", "-u", "-c", HEAR) as hearing:
        assert hearing.stdout
        assert hearing.stdout.readline() == "ready\n"
        here("exec", "client", "--", "python3", "-c", SPOOF, to, own)
        heard = hearing.stdout.read().split()
    assert heard == [own, own]


RELAY = """
import select, socket, sys
listener = socket.create_server(("0.0.0.0", 0))
print(listener.getsockname()[1], flush=True)
listener.settimeout(40)
victim, _ = listener.accept()
other = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5)
heard = 0
try:
    while readable := select.select([victim, other], [], [], 3)[0]:
        for sock in readable:
            data = sock.recv(65536)
            if not data:
                raise OSError
            heard += len(data) if sock is victim else 0
            (other if sock is victim else victim).sendall(data)
except OSError:
    pass
print(heard)
"""
HANDSHAKE = 4 + 32 + 32  # bytes that a dialler says before it knows whom it talks to


@pytest.mark.parametrize("through", ["n2", "n1"], ids=["to another node", "back to itself"])
def test_who_has_the_port_of_a_dead_node_cannot_pass_for_it(
    here: Namespace, bob: User, targets: list[Target], through: str
) -> None:
    """bob relays what a node says to him to a node that lives, whose answers are right; and would then read along."""
    at = address_of(here.user, through)
    (link,) = [target for target in links_of(targets) if target.address == at and "links" in target.purpose]
    nodes = here.user.home / ".local/share/pinnace/clusters" / here.cluster / "nodes"
    index = 40 if through == "n2" else 41
    with bob.bed.popen([PYTHON, "-c", RELAY, link.address, str(link.port)], user="bob", on="n3") as relay:
        try:
            assert relay.stdout
            port = int(relay.stdout.readline())
            address = bob.run("hostname", "-i", on="n3").stdout.split()[0]
            record = NodeRecord(name="dead", state=NodeState.RUNNING, address=address, links=port)
            (nodes / f"{index}.json").write_text(json.dumps(record.to_json()))  # what a node that was killed has left
            send = (
                "import socket, time\n"
                "sock = socket.socket(type=socket.SOCK_DGRAM)\n"
                f"for _ in range(20): sock.sendto(b's' * 500, ('10.42.0.{index + 1}', 9)); time.sleep(0.2)"
            )
            here("exec", "client", "--", "python3", "-c", send)
            heard = int(relay.stdout.read())
        finally:
            relay.kill()
            (nodes / f"{index}.json").unlink()
    assert heard == HANDSHAKE, "a proof that is worth nothing elsewhere, and no packet"


STOP = """
import os, socket, sys
def one(words):
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5) as sock:
        nonce = sock.recv(32)
        sock.sendall(words(nonce))
        try:
            return sock.recv(99)
        except OSError:
            return b""
for words in (
    lambda nonce: b"\\xff" * 4 + os.urandom(64) + b"stop",
    lambda nonce: b"\\xff" * 4 + nonce + nonce + b"stop",
    lambda nonce: b"\\0" * 68 + b"stop",
    lambda nonce: b"stop" * 30,
):
    assert one(words) == b"", "an answer to a stranger"
"""


def test_a_stranger_cannot_end_the_cluster(here: Namespace, bob: User, targets: list[Target]) -> None:
    for target in links_of(targets):
        bob.run(PYTHON, "-c", STOP, target.address, str(target.port))
    assert "no cluster" in bob.pinnace("down", here.cluster, code=None).stderr


# --- the API --------------------------------------------------------------------------------------------------------

ASK = """
import http.client, json, socket, ssl, sys
context = ssl._create_unverified_context()
host, port = sys.argv[1], int(sys.argv[2])
for name in ("kubernetes", "localhost", None, "x.pinnace.internal"):
    sock = context.wrap_socket(socket.create_connection((host, port), timeout=10), server_hostname=name)
    shown = sock.getpeercert(binary_form=True)
    print(name, b"pinnace.internal" in shown)
    for path in ("/api", "/version", "/healthz", "/openapi/v2", "/api/v1/secrets", "/metrics", "/debug/pprof/"):
        connection = http.client.HTTPConnection(host, port, timeout=10)
        connection.sock = context.wrap_socket(socket.create_connection((host, port), timeout=10), server_hostname=name)
        connection.request("GET", path)
        print(path, connection.getresponse().status)
        connection.close()
"""


def test_a_stranger_at_the_api_is_shown_nothing(bob: User, targets: list[Target]) -> None:
    api = api_of(targets)
    said = bob.run(PYTHON, "-c", ASK, api.address, str(api.port)).stdout.splitlines()
    assert len(said) == 4 * 8
    assert not [line for line in said if line.endswith("True")], "the name that users ask for is shown to nobody"
    assert {line.split()[1] for line in said if line.startswith("/")} == {"401"}


# --- ports that others have taken -----------------------------------------------------------------------------------

SQUAT = """
import socket, sys, time
held = []
for port in range(int(sys.argv[1]), int(sys.argv[2]) + 1):
    held.append(socket.create_server(("0.0.0.0", port)))
print("ready", flush=True)
time.sleep(120)
"""


@contextlib.contextmanager
def squatting(user: User, first: int, last: int, on: str) -> Iterator[None]:
    with user.bed.popen([PYTHON, "-c", SQUAT, str(first), str(last)], user=user.name, on=on) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield
        finally:
            process.kill()


def test_a_range_whose_ports_others_hold_is_named_and_one_free_port_is_found(alice: User, bob: User) -> None:
    script = alice.write("hello.sh", "#!/bin/sh\nkubectl get nodes -o name\n", 0o755)
    with squatting(bob, 22000, 22009, "n3"):
        result = alice.pinnace("run", "-w", "n3", "--ports", "22000-22009", script, code=None)
        assert result.returncode == 1
        assert "no port of 22000-22009 is free at" in result.stderr
        assert "--ports" in result.stderr
        result = alice.pinnace("run", "-w", "n3", "--ports", "22000-22012", script)
        assert result.stdout == "node/n3\n"


def test_a_published_port_that_another_holds_is_named(alice: User, bob: User) -> None:
    with squatting(bob, 30999, 30999, "n3"):
        script = alice.write("x.sh", "#!/bin/sh\n", 0o755)
        result = alice.pinnace("run", "-w", "n3", "--publish", "30999", script, code=1)
    assert "port 30999 cannot be published" in result.stderr


def test_ports_are_of_the_range_that_was_asked_for(targets: list[Target]) -> None:
    assert {target.port for target in targets} - {PUBLISHED} <= set(range(41000, 41400))


def test_a_network_that_a_host_is_not_in_is_named(alice: User) -> None:
    script = alice.write("x.sh", "#!/bin/sh\n", 0o755)
    result = alice.pinnace("run", "-w", "n3", "--listen", "203.0.113.0/24", script, code=1)
    assert "no address in 203.0.113.0/24" in result.stderr


# --- the way out ----------------------------------------------------------------------------------------------------

FLOWS = """
import socket
sock = socket.socket(type=socket.SOCK_DGRAM)
for number in range(5000):
    try:
        sock.sendto(b"x", (f"198.51.100.{1 + number % 250}", 1 + number))
    except OSError:
        pass
"""


def test_a_pod_with_thousands_of_flows_to_the_outside_does_not_end_the_others(here: Namespace) -> None:
    here("exec", "client", "--", "python3", "-c", FLOWS)
    assert "server.attacks" in here.sh("tools", "getent hosts server.attacks.svc.cluster.local")
