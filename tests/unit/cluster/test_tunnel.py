"""The tunnel to a head: started when it is needed, found again, for its user alone. srun is a script that runs here."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pinnace.cluster import ending, reaching, tunnel_start
from pinnace.cluster.cluster_job import ClusterJob, Place
from pinnace.cluster.credential import VALID_SECONDS
from pinnace.cluster.directory import Directory
from pinnace.cluster.head_step import running_head, step_argv
from pinnace.cluster.tunnel import srun_ports
from pinnace.cluster.tunnel_start import LocalAddress
from pinnace.errors import AddressTakenError, ClusterError, UsageError
from pinnace.kube.access import PLUGIN_LIMIT
from pinnace.network.addresses import choose
from pinnace.network.listening import PortRange
from pinnace.network.multiplexer import HEADER
from pinnace.network.tunnel import MAGIC
from pinnace.spec import ClusterSpec, NodeRecord, NodeState

if TYPE_CHECKING:
    from collections.abc import Iterator

SRUN = """\
#!/bin/sh
echo "a line of the site's own"
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""
BAD_FAR_END = f"""\
#!{sys.executable}
import sys, time
sys.stdout.buffer.write({MAGIC!r})
sys.stdout.flush()
sys.stdin.readline()
sys.stdout.buffer.write(b"here\\n" + {HEADER.pack(99, 0, 0)!r})
sys.stdout.flush()
time.sleep(60)
"""
BROKEN = """\
#!/bin/sh
echo "srun: error: Job/step already completing or completed" >&2
exit 1
"""
SCONTROL = """\
#!/bin/sh
[ "$*" = "show config" ] || exit 1
echo "SrunPortRange           = 0-0"
"""


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Slurm's commands are."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
    return directory


@pytest.fixture
def api() -> Iterator[int]:
    """The port of a server that sends back what it gets."""

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(65536):
                connection.sendall(data)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def directory(tmp_path: Path, api: int) -> Path:
    """The directory of a cluster whose head is this host."""
    path = tmp_path / "cluster"
    for part in ("nodes", "logs", "secrets"):
        (path / part).mkdir(parents=True)
    (path / "cluster.json").write_text("{}")
    NodeRecord(name="n1", state=NodeState.RUNNING, job=7, address="127.0.0.1", api=api).write(path / "nodes/0.json")
    return path


@pytest.fixture
def local(directory: Path) -> Iterator[LocalAddress]:
    address = LocalAddress.random()
    yield address
    for pid in tunnels(directory):
        os.kill(pid, signal.SIGKILL)


def tunnels(directory: Path) -> list[int]:
    """The processes of the near end."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_text().split("\0")
            found += [int(entry.name)] if "pinnace.cluster.tunnel" in words and str(directory) in words else []
    return found


def echo(local: LocalAddress, data: bytes = b"hello") -> bytes:
    with socket.create_connection((local.host, local.port), timeout=10) as sock:
        sock.sendall(data)
        return sock.recv(100)


@pytest.mark.usefixtures("commands")
def test_one_tunnel_serves_all_and_comes_back_when_it_was_killed(directory: Path, local: LocalAddress) -> None:
    threads = [threading.Thread(target=tunnel_start.ensure, args=(directory, local)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert echo(local) == b"hello"
    (pid,) = tunnels(directory)
    os.kill(pid, signal.SIGKILL)
    while local.owner is not None:
        time.sleep(0.01)
    tunnel_start.ensure(directory, local)
    assert echo(local) == b"hello"
    assert tunnels(directory) != [pid]


def test_without_a_way_back_the_standard_streams_carry_all(
    directory: Path, local: LocalAddress, commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1.invalid")
    assert commands.exists()
    tunnel_start.ensure(directory, local)
    assert echo(local) == b"hello"


@pytest.mark.usefixtures("commands")
def test_an_address_that_somebody_else_has_is_not_used(directory: Path, local: LocalAddress) -> None:
    with socket.socket() as squatter:  # bound, and not even listening
        squatter.bind((local.host, local.port))
        with pytest.raises(AddressTakenError):
            tunnel_start.ensure(directory, local)
    assert tunnels(directory) == []


def test_a_step_that_does_not_start_says_why(directory: Path, local: LocalAddress, commands: Path) -> None:
    (commands / "srun").write_text(BROKEN)
    with pytest.raises(ClusterError, match="already completing"):
        tunnel_start.ensure(directory, local)
    assert local.owner is None


@pytest.mark.usefixtures("commands")
def test_a_cluster_that_has_ended_is_said_to_have(directory: Path, local: LocalAddress) -> None:
    NodeRecord(name="n1", state=NodeState.ENDED, job=7).write(directory / "nodes/0.json")
    with pytest.raises(ClusterError, match="has ended"):
        tunnel_start.ensure(directory, local)


def test_addresses_are_of_the_loopback_network_and_do_not_repeat() -> None:
    found = {str(LocalAddress.random()) for _ in range(100)}
    assert len(found) == 100
    assert all(text.startswith("127.") and LocalAddress.parse(text).port >= 20000 for text in found)


def test_the_step_is_on_the_heads_host_and_beside_what_runs(directory: Path) -> None:
    argv = step_argv(running_head(directory), directory, ["true"])
    assert {"--jobid=7", "--nodelist=n1", "--overlap", "--unbuffered", "--ntasks=1"} <= set(argv)
    assert argv[-1] == "true"


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("SrunPortRange           = 60001-63000\n", PortRange(first=60001, last=63000)),
        ("SrunPortRange           = 0-0\n", None),
        ("SrunPortRange           = (null)\n", None),
        ("", None),
    ],
)
def test_the_ports_of_srun(text: str, ports: PortRange | None) -> None:
    assert srun_ports(text) == ports


@pytest.mark.usefixtures("commands")
def test_the_plugin_gives_the_certificate_and_the_shell_alone_does_while_the_tunnel_runs(
    directory: Path, local: LocalAddress
) -> None:
    user = {"client-certificate-data": "Y2VydA==", "client-key-data": "a2V5"}
    (directory / "secrets/admin.kubeconfig").write_text(json.dumps({"users": [{"user": user}]}))
    spec = reaching.plugin(directory, local)["exec"]

    def call(*argv: str) -> tuple[str, str, bool]:
        printed = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout
        status = json.loads(printed)["status"]
        expires = dt.datetime.fromisoformat(status["expirationTimestamp"])
        fresh = 60 < (expires - dt.datetime.now(dt.UTC)).total_seconds() <= VALID_SECONDS
        return status["clientCertificateData"], status["clientKeyData"], fresh

    assert call(spec["command"], *spec["args"]) == ("cert", "key", True)
    assert echo(local) == b"hello"
    only_shell = [*spec["args"][:5], "false"]
    assert call(spec["command"], *only_shell) == ("cert", "key", True)
    (pid,) = tunnels(directory)
    os.kill(pid, signal.SIGKILL)
    while local.owner is not None:
        time.sleep(0.01)
    with pytest.raises(subprocess.CalledProcessError):
        call(spec["command"], *only_shell)
    assert call(spec["command"], *spec["args"]) == ("cert", "key", True)
    assert echo(local) == b"hello"


@pytest.fixture
def cluster(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Directory]:
    """The same as a cluster's directory that has all a kubeconfig is made of."""
    monkeypatch.setenv("KUBECONFIG", str(directory / "users"))
    user = {"client-certificate-data": "Y2VydA==", "client-key-data": "a2V5"}
    names = {"clusters": [{"cluster": {}}], "users": [{"user": user}], "contexts": [{"context": {}}]}
    (directory / "secrets/admin.kubeconfig").write_text(json.dumps(names))
    (directory / "secrets/api.name").write_text("secret.name")
    spec = ClusterSpec(name="c", directory=directory, ranges=choose([]), binaries={})
    (directory / "cluster.json").write_text(json.dumps(spec.dump()))
    yield Directory(directory)
    for pid in tunnels(directory):
        os.kill(pid, signal.SIGKILL)


def unreachable(cluster: Directory, job: int | None = 7) -> None:
    """Let the head say that it is where nobody listens."""
    NodeRecord(name="n1", state=NodeState.RUNNING, job=job, address="127.0.0.1", api=1).write(
        cluster.path / "nodes/0.json"
    )


@pytest.mark.usefixtures("commands")
def test_an_api_that_is_reached_needs_no_tunnel(cluster: Directory) -> None:
    assert reaching.local_address(reaching.write_kubeconfig(cluster)) is None
    assert tunnels(cluster.path) == []


@pytest.mark.usefixtures("commands")
def test_one_that_is_not_reached_has_a_tunnel_that_stays_the_same(cluster: Directory) -> None:
    unreachable(cluster)
    path = reaching.write_kubeconfig(cluster)
    local = reaching.local_address(path)
    assert local is not None
    assert local.owner == os.getuid()
    reaching.refresh(cluster)
    assert reaching.local_address(path) == local
    document = json.loads(path.read_text())
    assert document["clusters"][0]["cluster"] == {"server": f"https://{local}", "tls-server-name": "secret.name"}
    assert "key" not in json.dumps(document["users"])
    moved = reaching.move(cluster, local)
    assert moved != local
    assert reaching.local_address(path) == moved


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize(("access", "through"), [("slurm", True), ("direct", False)])
def test_who_says_how_is_not_asked_twice(
    cluster: Directory, monkeypatch: pytest.MonkeyPatch, access: str, through: bool
) -> None:
    monkeypatch.setenv("PINNACE_ACCESS", access)
    if not through:
        unreachable(cluster)
    assert (reaching.local_address(reaching.write_kubeconfig(cluster)) is not None) == through


def test_a_cluster_without_a_job_is_reached_directly(cluster: Directory) -> None:
    unreachable(cluster, job=None)
    assert reaching.local_address(reaching.write_kubeconfig(cluster)) is None


def test_a_cluster_that_has_ended_keeps_its_kubeconfig(cluster: Directory) -> None:
    path = reaching.write_kubeconfig(cluster)
    before = path.read_text()
    NodeRecord(name="n1", state=NodeState.ENDED, job=7).write(cluster.path / "nodes/0.json")
    reaching.refresh(cluster)
    assert path.read_text() == before


@pytest.mark.usefixtures("commands")
def test_the_plugin_moves_a_tunnel_whose_address_is_taken(cluster: Directory) -> None:
    unreachable(cluster)
    path = reaching.write_kubeconfig(cluster)
    before = reaching.local_address(path)
    assert before is not None
    plugin = json.loads(path.read_text())["users"][0]["user"]["exec"]
    (pid,) = tunnels(cluster.path)
    os.kill(pid, signal.SIGKILL)
    while before.owner is not None:
        time.sleep(0.01)
    with socket.socket() as squatter:
        squatter.bind((before.host, before.port))
        for _ in range(2):
            result = subprocess.run(
                [plugin["command"], *plugin["args"]], capture_output=True, text=True, timeout=60, check=False
            )
            after = reaching.local_address(path)
            assert (result.returncode, result.stdout) == (1, "")
            assert f"Your kubeconfig leads to {after} now: run the command again." in result.stderr
            assert after not in {None, before}
    assert len(tunnels(cluster.path)) == 1


def near_end(directory: Path, local: LocalAddress) -> subprocess.CompletedProcess[str]:
    """A tunnel that ends by itself, in the foreground."""
    argv = [sys.executable, "-m", "pinnace.cluster.tunnel", "--cluster", str(directory), "--listen", str(local)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_a_far_end_that_breaks_the_protocol_is_said(directory: Path, local: LocalAddress, commands: Path) -> None:
    (commands / "srun").write_text(BAD_FAR_END)
    result = near_end(directory, local)
    assert (result.returncode, result.stdout, result.stderr) == (1, "ready\n", "a frame of the unknown kind 99\n")


@pytest.mark.usefixtures("commands")
def test_only_an_address_that_is_in_use_is_taken(directory: Path, local: LocalAddress) -> None:
    with socket.create_server((local.host, local.port)):
        assert near_end(directory, local).stdout == "taken\n"
    nowhere = LocalAddress(host="192.0.2.1", port=local.port)  # for documentation (RFC 5737): no host has it
    said = near_end(directory, nowhere)
    assert (said.returncode, "Cannot assign requested address" in said.stdout) == (1, True)
    assert said.stdout.startswith(f"{nowhere}: ")


def writers(log: Path) -> list[int]:
    """The processes whose standard error is the tunnel's log: its own, and srun's."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found += [int(entry.name)] if (entry / "fd/2").readlink() == log else []
    return found


@pytest.mark.usefixtures("commands")
def test_a_directory_is_removed_when_this_hosts_tunnel_has_closed_its_log(
    cluster: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreachable(cluster)
    reaching.write_kubeconfig(cluster)
    log = tunnel_start.log_path(cluster.path)
    assert len(writers(log)) == 2  # the near end, and srun
    seen, remove = [], Directory.remove

    def look_and_remove(directory: Directory) -> None:
        seen.append(writers(log))
        remove(directory)

    monkeypatch.setattr(Directory, "remove", look_and_remove)
    ending.remove(ClusterJob(cluster, Place.BATCH), retain=False)
    assert seen == [[]]
    assert not cluster.path.exists()


def test_a_process_that_only_has_a_tunnels_number_is_left_alone(directory: Path) -> None:
    tunnel_start.log_path(directory).touch()
    with subprocess.Popen(["sleep", "60"]) as other:
        tunnel_start.pid_path(directory).write_text(f"{other.pid}\n")
        tunnel_start.end(directory)
        assert other.poll() is None
        other.kill()
    tunnel_start.pid_path(directory).write_text("")
    tunnel_start.end(directory)


@pytest.mark.usefixtures("commands")
def test_a_kubeconfig_that_leads_through_a_tunnel_leads_to_the_api_if_that_is_asked_for(
    cluster: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreachable(cluster)
    path = reaching.write_kubeconfig(cluster)
    assert reaching.local_address(path) is not None
    monkeypatch.setenv("PINNACE_ACCESS", "direct")
    reaching.refresh(cluster)
    assert reaching.local_address(path) is None


@pytest.mark.usefixtures("commands")
def test_a_tunnel_that_does_not_run_is_not_started_again_if_the_api_is_reached_by_now(
    cluster: Directory, api: int
) -> None:
    unreachable(cluster)
    path = reaching.write_kubeconfig(cluster)
    local = reaching.local_address(path)
    assert local is not None
    NodeRecord(name="n1", state=NodeState.RUNNING, job=7, address="127.0.0.1", api=api).write(
        cluster.path / "nodes/0.json"
    )
    reaching.refresh(cluster)
    assert reaching.local_address(path) == local, "it runs, and others may use it"
    tunnel_start.end(cluster.path)
    reaching.refresh(cluster)
    assert reaching.local_address(path) is None
    assert tunnels(cluster.path) == []


def test_an_unknown_access_is_refused(cluster: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINNACE_ACCESS", "magic")
    with pytest.raises(UsageError, match="PINNACE_ACCESS cannot be 'magic'"):
        reaching.write_kubeconfig(cluster)


def test_a_plugin_has_the_time_to_start_a_tunnel() -> None:
    assert PLUGIN_LIMIT > tunnel_start.START_LIMIT + tunnel_start.FIND_LIMIT
