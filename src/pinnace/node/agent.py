"""The agent: turns the allocation that it runs in into a node of a cluster.

    python -m pinnace.node --cluster DIRECTORY [--index N --name NAME | --join [--as NAME] [--pod NS/NAME/UID]]

It stays in the host's network namespace, where it carries the node's packets, and holds the namespaces in which the
node lives. It is the same on every node and in every model; the node with index 0 also has the control plane. A node
that joins later takes a free index, and is named after its job: several may run on one host. If it is for one pod, it
ends with it, and with its exit code (see ``podjobs.pod_runner``).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import shlex
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.placement import HEAD_TAINT
from pinnace.errors import PinnaceError, UnsafePathError
from pinnace.images import cache
from pinnace.interpreter import python_argv
from pinnace.network import links, listening, router, tcp_proxy
from pinnace.network.handshake import HandshakeError, Protocol, dial, listener_name
from pinnace.network.netns_setup import add_sbin_to_path
from pinnace.network.splice import BACKLOG
from pinnace.node import checks
from pinnace.node.certificates import Certificates
from pinnace.node.helpers import fork, fork_again
from pinnace.node.init import AT_ONCE, END, Init
from pinnace.node.stopping import ask_to_stop
from pinnace.node.supervisor import describe_end
from pinnace.podjobs import joining, provisioner_argv, start_throttle
from pinnace.podjobs.ranks import launcher
from pinnace.sandbox import ids, namespaces, scratch
from pinnace.sandbox.mountinfo import mount_table
from pinnace.slurm import host_name
from pinnace.spec import API_PORT, HEAD, ClusterSpec, Mpi, NodeSpec, Share, Tenant, read_json, take_index, write_json
from pinnace.spec.records import Records

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HELPER_PAUSE = 0.2  # seconds before a helper is started again
HEAD_PAUSE = 0.2  # seconds between attempts to reach the head
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # from Slurm, or the user
ASKED = signal.SIGUSR1  # from a helper to the agent: end in order
LEFT = signal.SIGUSR2  # likewise: nothing runs here any more, end now
HEAD_LIMIT = 120.0  # seconds of silence after which a node gives up


def name_servers() -> list[str]:
    """The host's name servers, IPv4 only: the fabric has no other."""
    with contextlib.suppress(OSError):
        words = (line.split() for line in Path("/etc/resolv.conf").read_text().splitlines())
        return [line[1] for line in words if len(line) > 1 and line[0] == "nameserver" and ":" not in line[1]]
    return []


def allocated(environment: Mapping[str, str]) -> Share:
    """What Slurm has given us of this host: all of it, where it does not say."""
    cpus = environment.get("SLURM_CPUS_ON_NODE")
    per_node, per_cpu = environment.get("SLURM_MEM_PER_NODE"), environment.get("SLURM_MEM_PER_CPU")
    memory = int(per_node) if per_node else int(per_cpu or 0) * int(cpus or 0)
    return Share(cpus=int(cpus) if cpus else None, memory=memory << 20 or None)


def lease_images(node: NodeSpec) -> cache.CacheLease | None:
    """A directory with the images of earlier clusters, if they may stay on this host."""
    pool = cache.place(os.environ, os.getuid())
    if not pool or not cache.prepare(pool, mount_table()):
        return None
    return cache.take(pool, cache.fitting(node.binary("containerd"), str(ids.subordinate_ranges())))


def say(text: str) -> None:
    """For the agent's log, which the user is shown when a cluster does not start."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def serve_tenant(
    node: NodeSpec, turn: start_throttle.Turn | None, containerd: Path, left: Callable[[int], None]
) -> None:
    from pinnace.podjobs import pod_runner  # noqa: PLC0415 - it takes a tenth of a second, for which the node need not wait

    pod_runner.serve(node, turn, containerd, left)


def serve_ranks(node: NodeSpec, monitor: int) -> None:
    """Containers find the socket at once; what is behind it is loaded for the first who asks, and most never do."""
    signal.signal(launcher.END, signal.SIG_DFL)
    listener = launcher.listen(launcher.directory(node.scratch))
    select.select([listener], [], [])
    from pinnace.podjobs.ranks import server  # noqa: PLC0415 - as above

    server.serve(node, monitor, listener)


def came_too_late(spec: ClusterSpec, tenant: Tenant, turn: start_throttle.Turn) -> bool:
    """Whether others have taken the pod while its node waited for its turn."""
    if not turn.waited:
        return False
    from pinnace.podjobs import pod_runner  # noqa: PLC0415 - as above

    return not pod_runner.is_waited_for(spec, tenant)


class Agent:
    """One node, from the host's point of view."""

    def __init__(
        self, node: NodeSpec, turn: start_throttle.Turn | None = None, certificates: Certificates | None = None
    ) -> None:
        self.node = node
        self.turn = turn
        self.certificates = certificates
        self.lease: cache.CacheLease | None = None
        self.secret = node.cluster.link_key
        self.host_address = listening.host_address(node.name, node.cluster.listen)

    def run(self) -> int:
        try:
            self.lease = lease_images(self.node)
            if self.node.has_ranks:
                launcher.install(self.node.scratch)
            return self._run()
        finally:
            shutil.rmtree(self.node.cluster.ranks(self.node.name), ignore_errors=True)
            scratch.remove(self.node.scratch)
            if self.lease:
                cache.drop_unless_closed(self.lease)

    def _run(self) -> int:
        node = self.node
        servers = name_servers()
        node.cluster.logs(node.name).mkdir(parents=True, exist_ok=True)
        links_at = self._listen()
        about: dict[str, Any] = {
            "name": node.name,
            "address": self.host_address,
            "links": links_at.getsockname()[1],
            "published": list(node.cluster.publish),
        }
        if "SLURM_JOB_ID" in os.environ:
            about["job"] = int(os.environ["SLURM_JOB_ID"])
        api_at = None
        self._issue_certificates()
        if node.is_head:
            api_at = self._listen()
            about["api"] = api_at.getsockname()[1]
        published = [self._publish(port) for port in node.cluster.publish]
        write_json(node.cluster.node_file(node.index), about)
        noted = note_signals()
        monitor, line = namespaces.start(
            lambda line: Init(node, line, sys.executable, servers, self.lease).run(), self._cleanup()
        )
        words, descriptors, _, _ = socket.recv_fds(line, namespaces.MAX_ERROR_SIZE, 3)
        if not descriptors:
            raise namespaces.NamespaceError(words.decode(errors="replace") or "its network could not be made")
        tun, egress_listener, netns_sockets = descriptors
        helpers = {
            "links": lambda: self._route(tun, links_at, servers),
            "proxy": lambda: tcp_proxy.run(
                self._proxy_addresses(),
                egress_listener=egress_listener,
                netns_sockets=netns_sockets,
                api=api_at,
                published=published,
                name_servers=servers,
            ),
        }
        agent = os.getpid()
        if node.is_head and node.cluster.bridge is not None:
            helpers["bridge"] = self._bridge
        if not node.is_head:
            helpers["watch"] = lambda: self._watch_head(agent)
        else:
            if "job" in about:
                fork(lambda: self._watch_time(int(about["job"]), agent))
            if node.cluster.provisioning:
                helpers["provisioner"] = self._provision
        told, tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

        def left(code: int) -> None:
            os.write(tell, bytes([code]))
            os.kill(agent, LEFT)

        if node.tenant:
            containerd = self.lease.containerd if self.lease else node.scratch / "containerd"
            helpers["tenant"] = lambda: serve_tenant(node, self.turn, containerd, left)
            if node.has_ranks:
                helpers["ranks"] = lambda: serve_ranks(node, monitor)
        try:
            certificates = self.certificates.pid if self.certificates else 0
            self._wait(monitor, line, helpers, certificates, noted)
            return self._exit_code(told) if node.tenant else 0
        finally:
            ignore_signals()
            self._mark_ended()

    @staticmethod
    def _exit_code(told: int) -> int:
        """The tenant's, if its helper has told us."""
        with contextlib.suppress(BlockingIOError):
            return os.read(told, 1)[0]
        return joining.EVICTED  # it was not asked: its head is gone

    def _cleanup(self) -> namespaces.Cleanup:
        base, uid, lease = self.node.scratch.parent, os.getuid(), self.lease

        def sweep() -> None:
            scratch.sweep(base, uid)
            if lease:
                cache.sweep(lease.path.parent, lease.fits)

        def end(in_order: bool) -> None:
            scratch.remove(self.node.scratch)
            if lease and in_order:
                cache.close(lease)
            elif lease:
                cache.drop(lease.path)

        return namespaces.Cleanup(sweep=sweep, end=end)

    def _mark_ended(self) -> None:
        about = {"name": self.node.name, "ended": True}
        if "SLURM_JOB_ID" in os.environ:
            about["job"] = int(os.environ["SLURM_JOB_ID"])
        write_json(self.node.cluster.node_file(self.node.index), about)

    def _issue_certificates(self) -> None:
        """Of the nodes whose names are known now: all of a job's by its first, those of others by themselves."""
        node = self.node
        if not (node.is_head or node.joined):
            if self.certificates:
                self.certificates.cancel()
            return
        nodelist = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST")
        names = node.name if node.joined or not nodelist else nodelist
        self.certificates = self.certificates or Certificates()
        self.certificates.make(node.cluster.secrets, node.cluster.ranges, names, first=node.index)

    def _provision(self) -> None:
        """Become the provisioner, which needs the host's network: Slurm is there, and the API is too."""
        node = self.node
        with (node.cluster.logs(node.name) / "provisioner.log").open("ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        os.execv(sys.executable, provisioner_argv(sys.executable, node.cluster.directory))  # noqa: S606

    @staticmethod
    def _wait(
        monitor: int, line: socket.socket, helpers: dict[str, Callable[[], None]], certificates: int, noted: list[int]
    ) -> None:
        """Until the node ends; a signal ends it. A helper that dies is started again: it holds nothing of its own.

        ``noted`` are the signals that have come while the node was made.
        """
        running: dict[int, str] = {}

        def tell(word: bytes) -> None:
            with contextlib.suppress(OSError):
                line.send(word)

        def end(*_: object) -> None:
            """In order; a pod that has the node for itself is ended first, and its helper then tells us."""
            tenants = [pid for pid, name in running.items() if name == "tenant"]
            for pid in tenants:
                os.kill(pid, joining.EVICT)
            if not tenants:
                tell(END)

        def dismiss() -> list[int]:
            """Tell the helper that has started ranks on other hosts to clean up there. Gives it, while it does."""
            for pid in [pid for pid, name in running.items() if name == "ranks"]:
                running[pid] = ""  # not to be started again
                os.kill(pid, launcher.END)
            return [pid for pid, name in running.items() if not name]

        def leave(*_: object) -> None:
            tell(AT_ONCE)
            dismiss()

        for number in STOPS:
            signal.signal(number, end)
        signal.signal(ASKED, lambda *_: tell(END))
        signal.signal(LEFT, leave)
        if noted:
            os.kill(monitor, namespaces.AGENT_GONE)
        running |= {fork(work): name for name, work in helpers.items()}
        while True:
            pid, status = os.wait()
            if pid == monitor:
                code = os.waitstatus_to_exitcode(status)
                if code:
                    words = namespaces.error_message(line)
                    raise namespaces.NamespaceError(words or f"its first process ended with exit code {code}")
                for helper in dismiss():
                    os.waitpid(helper, 0)
                return
            if pid == certificates and status:
                raise namespaces.NamespaceError("the nodes' certificates could not be made; the lines above say why")
            if name := running.pop(pid, None):
                say(f"{name} ended ({describe_end(os.waitstatus_to_exitcode(status))}); starting it again")
                time.sleep(HELPER_PAUSE)
                running[fork_again(helpers[name])] = name

    def _watch_time(self, job: int, agent: int) -> None:
        """End the cluster in order before its job's time is over."""
        from pinnace.node import time_limit  # noqa: PLC0415 - only the head's agent needs it

        limit = time_limit.wait_for_end(job)
        if limit is not None:
            write_json(self.node.cluster.ending, {"limit": limit})
            os.kill(agent, ASKED)

    def _watch_head(self, agent: int) -> None:
        """End this node when the head has ended, by its own word or by its silence. An open link tells at once."""
        spec, heard = self.node.cluster, time.monotonic()
        while time.monotonic() - heard < HEAD_LIMIT:
            about = read_json(spec.node_file(HEAD))
            if about and ("failed" in about or "ended" in about):
                break
            if about and "links" in about and self._hold_link(about["address"], about["links"]):
                heard = time.monotonic()
            time.sleep(HEAD_PAUSE)
        os.kill(agent, ASKED)

    def _bridge(self) -> None:
        """Become `pinnace bridge`: out here, because Slurm's commands need the host's munge."""
        cluster = self.node.cluster
        with (cluster.logs(self.node.name) / "bridge.log").open("ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        image = ["--image", cluster.bridge] if cluster.bridge else []
        argv = python_argv("pinnace", "bridge", "--name", cluster.name, *image, *cluster.bridge_options)
        os.execv(sys.executable, argv)  # noqa: S606

    def _hold_link(self, address: str, port: int) -> bool:
        """Keep a link to the head open until its other end is gone. Whether there was one."""
        held = False
        with contextlib.suppress(OSError, HandshakeError), socket.create_connection((address, port), timeout=5) as sock:
            dial(sock, self.secret, Protocol.LINKS, self.node.index, listener_name(HEAD, address, port))
            links.keep_alive(sock)
            held = True
            sock.recv(1)  # nothing is ever sent here
        return held

    def _route(self, tun: int, links_at: socket.socket, servers: list[str]) -> None:
        """Route the node's packets, in a process of its own."""
        node, agent = self.node, os.getppid()
        router.run(
            tun,
            links_at,
            self.secret,
            index=node.index,
            address=self.host_address,
            ranges=node.cluster.ranges,
            find=Records(node.cluster.directory / "nodes").find,
            name_servers=servers,
            on_stop=lambda: os.kill(agent, ASKED),
        )

    def _proxy_addresses(self) -> tcp_proxy.ProxyAddresses:
        cluster = self.node.cluster
        api = (str(cluster.ranges.node(HEAD)), API_PORT)
        return tcp_proxy.ProxyAddresses(
            ranges=cluster.ranges, address=self.node.address, api=api, api_name=cluster.api_name
        )

    def _listen(self) -> socket.socket:
        """A port of this host that the others can reach."""
        ports = self.node.cluster.ports
        return listening.bind(self.host_address, listening.PortRange.parse(ports) if ports else None, BACKLOG)

    def _publish(self, port: int) -> socket.socket:
        try:
            return socket.create_server((self.host_address, port), backlog=BACKLOG)
        except OSError as error:
            raise OSError(error.errno, f"port {port} cannot be published: {error.strerror}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pinnace-agent")
    parser.add_argument("--cluster", type=Path, required=True)
    parser.add_argument("--stop", action="store_true", help="ask the cluster to end, instead of being a node of it")
    parser.add_argument("--index", type=int, default=int(os.environ.get("SLURM_PROCID", "0")))
    parser.add_argument("--name", default=host_name(os.environ))
    parser.add_argument("--join", action="store_true", help="be one more node of a cluster that runs")
    parser.add_argument("--as", dest="known_as", help="the name of a node that joins; by default that of its job")
    parser.add_argument("--pod", type=Tenant.parse, help="be there for this pod alone")
    parser.add_argument("--image", action="append", default=[], help="that the pod will want (repeat)")
    parser.add_argument("--volumes", action="store_true", help="the pod has volumes that are claimed")
    parser.add_argument("--mpi-container", action="append", default=[], help="to be started by mpiexec (repeat)")
    parser.add_argument("--mpi-flags", default="", help="for mpiexec")
    parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="of the node (repeat)")
    return parser


def main(argv: list[str], certificates: Certificates | None = None) -> int:
    words = _parser().parse_args(argv)
    if words.stop:
        return 0 if ask_to_stop(words.cluster) else 1
    leave_on_signals()
    add_sbin_to_path()
    try:
        spec = ClusterSpec.load(words.cluster.resolve())
    except UnsafePathError as error:
        say(f"{words.name} cannot be a node: {error.message}")
        return 1
    host, name = words.name, words.name
    index: int | None = None if words.join else int(words.index)
    turn: start_throttle.Turn | None = None
    place: Path | None = None
    try:
        checks.require_clock(spec.made, time.time())
        place = scratch.make(scratch.base(os.environ), os.getuid())
        labels = dict(label.split("=", 1) for label in words.label)
        taints: tuple[str, ...] = ()
        if index == HEAD and spec.provisioning and spec.provisioning.pods_as_jobs:
            taints = (HEAD_TAINT,)
        if index is None:
            if refusal := may_not_join(spec):
                say(refusal)
                return 1
            if words.pod:
                turn = start_throttle.take(place, os.getuid(), start_throttle.at_a_time(os.cpu_count() or 1))
                if came_too_late(spec, words.pod, turn):
                    say(f"other jobs had room for the pod {words.pod.name}")
                    return 0
            name = words.known_as or joining.node_name(os.environ)
            index = joining_index(spec, name)
            labels |= joining.labels(os.environ, host)
            taints = joining.taints(words.pod, words.known_as)
        checks.require_watches()
        node = NodeSpec(
            cluster=spec,
            index=index,
            name=name,
            scratch=place,
            share=allocated(os.environ),
            joined=words.join,
            labels=labels,
            taints=taints,
            tenant=words.pod,
            images=tuple(words.image),
            volumes=words.volumes or not words.pod,
            mpi=Mpi(containers=tuple(words.mpi_container), flags=tuple(shlex.split(words.mpi_flags)))
            if words.mpi_container
            else None,
        )
        return Agent(node, turn, certificates).run()
    except (OSError, namespaces.NamespaceError, PinnaceError) as error:
        reason, hint = explain(error, scratch.base(os.environ))
        message = f"{host} cannot be a node: {reason}"
        say(message)
        if index is not None:
            write_json(spec.node_file(index), {"name": name, "failed": message, "hint": hint})
        return 1
    finally:
        if place:
            scratch.remove(place)


def leave_on_signals() -> None:
    """Before there is a node, a signal ends the agent, which first removes what it has made."""

    def leave(number: int, _frame: object) -> None:
        ignore_signals()
        sys.exit(128 + number)

    for number in STOPS:
        signal.signal(number, leave)


def note_signals() -> list[int]:
    """While a node is made, its monitor must not be left alone: signals are only noted, in the list that this gives.

    If the agent ended, Slurm would kill the monitor before that has removed the node's files.
    """
    noted: list[int] = []
    for number in STOPS:
        signal.signal(number, lambda number, _frame: noted.append(number))
    return noted


def ignore_signals() -> None:
    """From now on nobody can end the node: it has ended.

    Helpers may still ask for its end. When Python ends it takes its handlers away, and a signal would kill it then:
    Slurm would call a job failed whose work is done.
    """
    for number in (*STOPS, ASKED, LEFT):
        signal.signal(number, signal.SIG_IGN)


def may_not_join(spec: ClusterSpec) -> str:
    """Why there is nothing to join: a job may have been pending for longer than its cluster lived."""
    head = read_json(spec.node_file(HEAD))
    if not head or "links" not in head:
        return f"the cluster {spec.name} has ended"
    return ""


def joining_index(spec: ClusterSpec, name: str) -> int:
    first = spec.provisioning.standing if spec.provisioning else 1
    about = {"name": name, "job": int(os.environ.get("SLURM_JOB_ID", "0"))}
    return take_index(spec.directory / "nodes", about, first=first, last=spec.ranges.last_index)


def explain(error: Exception, base: Path) -> tuple[str, str]:
    """Why this host cannot be a node, and what to do: what it lacks, if it does; otherwise the error itself."""
    if isinstance(error, (namespaces.NamespaceError, PinnaceError)) and error.hint:
        return str(error), error.hint
    for check in checks.host_checks(base):
        if check.state is checks.State.FAILED:
            return f"{check.name}: {check.text}", check.hint
    return str(error), ""
