"""The agent: turns the allocation that it runs in into a node of a cluster.

It stays in the host's network namespace, where it carries the node's packets, and holds the namespaces in which the
node lives. It is the same on every node and in every model; the node with index 0 also has the control plane.

    agent ── monitor ── init ── the node's processes (node.init)
      ├ links          carries packets between the TUN device, other nodes and the outside
      ├ proxy          joins TCP connections across the border of the fabric
      ├ sockets        makes pods' TCP connections the host's own (network.native)
      ├ watch-head     on all nodes but the head: ends this node when the head has ended
      ├ time-limit     on the head: ends the cluster in order before its job's time limit
      ├ provisioner    on the head, for pods as jobs and elastic nodes (podjobs.controller)
      ├ bridge         on the head, if it was asked for (pinnace bridge)
      ├ pod-runner     on a node for one pod: takes the pod, ends with it (podjobs.pod_runner)
      └ ranks          on a node for one pod: starts ranks on all hosts of its job (podjobs.ranks)
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.errors import NodeError
from pinnace.images import cache, tags
from pinnace.interpreter import python_argv
from pinnace.network import listening, router, tcp_proxy
from pinnace.network.native.shared_memory import SharedMemory
from pinnace.network.splice import BACKLOG
from pinnace.node import head_watch, messages, requirements, shim_server
from pinnace.node.certificates import Certificates
from pinnace.node.forking import SLURM_SIGNALS, WAKEUPS, ended_children, fork, wake_on_signals
from pinnace.node.init import run_init
from pinnace.node.messages import Channel
from pinnace.node.notify_keeper import NotifyKeeper
from pinnace.node.services.containerd import wanted_images
from pinnace.node.supervisor import Command, Function, RestartPolicy, Service, Supervisor, describe_end
from pinnace.podjobs import joining, provisioner_argv
from pinnace.podjobs.ranks import launcher
from pinnace.sandbox import ids, namespaces, scratch
from pinnace.sandbox.entering import enter_users, first_process
from pinnace.sandbox.linux import die_with_parent
from pinnace.sandbox.mountinfo import mount_table
from pinnace.spec import API_PORT, HEAD, NodeRecord, NodeServices, NodeSpec, NodeState, ServiceRecord, write_json
from pinnace.spec.records import NodeAddresses, NodeConnections
from pinnace.timeline.recorder import MarkEvent, Recorder, StepName, node_marks

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.network.native.server import SocketsNode
    from pinnace.podjobs.start_throttle import StartSlot


SOCKETS = "sockets"  # the server of native sockets
SOCKETS_BACK_OFF = (0.0, 0.1, 0.3)  # seconds before it is started again: pods wait for it
MAX_SOCKETS_RESTARTS = 20  # in a row, after which all is left to the general path until it has run for a minute


def name_servers() -> list[str]:
    """The host's name servers, IPv4 only: the fabric has no other."""
    with contextlib.suppress(OSError):
        lines = (line.split() for line in Path("/etc/resolv.conf").read_text().splitlines())
        return [line[1] for line in lines if len(line) > 1 and line[0] == "nameserver" and ":" not in line[1]]
    return []


def lease_images(node: NodeSpec) -> cache.CacheLease | None:
    """A directory with the images of earlier clusters, if they may stay on this host."""
    pool = cache.place(os.environ, os.getuid())
    if not pool or not cache.prepare(pool, mount_table()):
        return None
    fits = cache.fitting(node.binary("containerd"), str(ids.subordinate_ranges()))
    return cache.take(pool, fits, tags.digests(Path(node.cluster.images), wanted_images(node)).values())


def say(text: str) -> None:
    """For the agent's log, which the user is shown when a cluster does not start."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


@dataclass(frozen=True, kw_only=True)
class ProxyListeners:
    """The ports of this host that lead into the fabric."""

    api: socket.socket | None
    published: list[socket.socket]


class Agent:
    """One node, from the host's point of view."""

    def __init__(
        self,
        node: NodeSpec,
        turn: StartSlot | None = None,
        certificates: Certificates | None = None,
        timeline: Recorder | None = None,
    ) -> None:
        self.node = node
        self.timeline = timeline or Recorder()
        self.turn = turn
        self.certificates = certificates
        self.lease: cache.CacheLease | None = None
        self.secret = node.cluster.link_key
        self.host_address = listening.host_address(node.name, node.cluster.listen, node.cluster.interface)
        self.job = int(os.environ["SLURM_JOB_ID"]) if "SLURM_JOB_ID" in os.environ else None
        self.name_servers = name_servers()
        self.supervisor = Supervisor(self._services_changed, self.timeline)
        self.monitor = 0
        self.init: Channel
        self.shims: socket.socket | None = None  # where shims in the host's network are asked for
        self.failure = ""  # why init has ended
        self.exit_code = joining.EVICTED if node.pod else 0  # of a pod that nobody asked: its head is gone
        self.inside: tuple[ServiceRecord, ...] = ()  # what init supervises
        self.begun = time.monotonic()
        self.unwritten = False  # whether the report of services is older than they are
        self.notifications: NotifyKeeper | None = None

    def run(self) -> int:
        """Be the node until it ends. Gives the exit code: of its pod, if it is for one."""
        try:
            with self.timeline.step(StepName.IMAGE_CACHE):
                self.lease = lease_images(self.node)
            if self.node.has_ranks:
                launcher.install(self.node.scratch)
            return self._run()
        finally:
            self.supervisor.end()
            shutil.rmtree(self.node.cluster.ranks(self.node.name), ignore_errors=True)
            scratch.remove(self.node.scratch)
            if self.lease:
                cache.drop_unless_closed(self.lease)

    def _run(self) -> int:
        node = self.node
        node.cluster.logs(node.name).mkdir(parents=True, exist_ok=True)
        links_at = self._listen()
        sockets_at = self._listen() if node.has_native_sockets else None
        self._issue_certificates()
        proxy_at = ProxyListeners(
            api=self._listen() if node.is_head else None,
            published=[self._publish(port) for port in node.cluster.publish],
        )
        self._write_record(links_at, sockets_at, proxy_at.api)
        wake, signals = watch_signals()
        if node.pod:  # it takes its pod while the node is made
            self._helper("pod-runner", self._run_pod)
            self.supervisor.tick()
        self.timeline.mark(StepName.NAMESPACES, MarkEvent.BEGIN)
        self.monitor, line = namespaces.start(
            lambda line: run_init(node, line, self.name_servers, self.lease, self.timeline),
            self._cleanup(),
            drop_groups=node.cluster.restriction is not None,  # tenants are not the user
        )
        self.init = Channel(line)
        fabric = self._receive_fabric()
        try:
            if signals:  # while the node was made: nothing runs in it yet
                os.kill(self.monitor, namespaces.AGENT_GONE)
            self.shims = socket.socket(fileno=fabric["shims"]) if "shims" in fabric else None
            self._add_network(fabric, links_at, proxy_at)
            if sockets_at:
                self._add_native_sockets(fabric, sockets_at)
            self._add_helpers()
            self._loop(wake, signals)
            return self.exit_code
        finally:
            ignore_signals()
            self._write_end()

    def _write_record(
        self, links_at: socket.socket, sockets_at: socket.socket | None, api_at: socket.socket | None
    ) -> None:
        record = NodeRecord(
            name=self.node.name,
            state=NodeState.RUNNING,
            job=self.job,
            address=self.host_address,
            links=links_at.getsockname()[1],
            sockets=sockets_at.getsockname()[1] if sockets_at else 0,
            api=api_at.getsockname()[1] if api_at else None,
            published=self.node.cluster.publish,
        )
        record.write(self.node.cluster.node_file(self.node.index))

    def _receive_fabric(self) -> dict[str, int]:
        """The descriptors of the node's network, from init, which may have started services before."""
        while True:
            message, descriptors = self.init.receive_with_descriptors()
            if isinstance(message, messages.Fabric):
                return dict(zip(message.names, descriptors, strict=True))
            if not isinstance(message, messages.ServicesChanged):
                reason = message.reason if isinstance(message, messages.Failed) else ""
                raise NodeError(reason or "its network could not be made")
            self.inside, self.unwritten = message.services, True

    def _cleanup(self) -> namespaces.Cleanup:
        base, uid, lease = self.node.scratch.parent, os.getuid(), self.lease

        def sweep() -> None:
            scratch.sweep(base, uid)
            if lease:
                cache.sweep(lease.path.parent, lease.fits)

        def end(in_order: bool) -> None:
            self.timeline.mark(StepName.INIT_END, MarkEvent.END)
            with self.timeline.step(StepName.FILES):
                scratch.remove(self.node.scratch)
                if lease and in_order:
                    cache.close(lease)
                elif lease:
                    cache.drop(lease.path)

        return namespaces.Cleanup(sweep=sweep, end=end)

    def _issue_certificates(self) -> None:
        """Of the nodes whose names are known now: all of a job's by its first, those of others by themselves."""
        node = self.node
        if not (node.is_head or node.joined):
            if self.certificates:
                self.certificates.cancel()
        else:
            nodelist = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST")
            names = node.name if node.joined or not nodelist else nodelist
            self.certificates = self.certificates or Certificates()
            self.certificates.make(node.cluster.secrets, node.cluster.ranges, names, first=node.index)
        if self.certificates:
            self.supervisor.adopt("certificates", self.certificates.pid, _require_certificates)

    # --- the processes beside the agent ---------------------------------------------------------------------------

    def _add_network(self, fabric: dict[str, int], links_at: socket.socket, proxy_at: ProxyListeners) -> None:
        egress_listener, netns_sockets = fabric["egress"], fabric["proxy"]
        queues = [descriptor for name, descriptor in fabric.items() if name.startswith(messages.TUN_QUEUE)]
        cluster = self.node.cluster
        addresses = tcp_proxy.ProxyAddresses(
            ranges=cluster.ranges,
            address=self.node.address,
            api=(str(cluster.ranges.node(HEAD)), API_PORT),
            api_name=cluster.api_name,
        )
        self._helper("links", lambda channel: self._route(channel, queues, links_at))
        self._helper(
            "proxy",
            lambda _channel: tcp_proxy.run(
                addresses,
                egress_listener=egress_listener,
                netns_sockets=netns_sockets,
                api=proxy_at.api,
                published=proxy_at.published,
                name_servers=self.name_servers,
            ),
        )

    def _add_native_sockets(self, fabric: dict[str, int], listener: socket.socket) -> None:
        memory, fabric_sockets = SharedMemory(), fabric["sockets"]
        self.notifications = NotifyKeeper(
            socket.socket(fileno=fabric["notify"]),
            self._pass_notifications,
        )
        notifications = self.notifications

        def serve(channel: Channel) -> None:
            from pinnace.network.native import server  # noqa: PLC0415 - the agent itself shall not wait for it

            running = self.supervisor.find(SOCKETS)
            unstable = running is not None and running.restarts > MAX_SOCKETS_RESTARTS
            node = self._sockets_node(listener, fabric_sockets)
            try:  # else it may not look at processes that are not root in the node
                enter_users(first_process(self.monitor))
            except (FileNotFoundError, ProcessLookupError):
                return  # the node has ended
            die_with_parent(signal.SIGKILL)  # the kernel forgets that with the change of rights
            server.run(node, memory, notifications.source(channel), pass_through=unstable)

        self.supervisor.add(Service(name=SOCKETS, run=Function(work=serve), back_off=SOCKETS_BACK_OFF))

    def _sockets_node(self, listener: socket.socket, fabric_sockets: int) -> SocketsNode:
        from pinnace.network.native.server import SocketsNode  # noqa: PLC0415 - in the server's process, as above
        from pinnace.podjobs import head_access  # noqa: PLC0415

        cluster, index = self.node.cluster, self.node.index
        return SocketsNode(
            index=index,
            ranges=cluster.ranges,
            secret=self.secret,
            address=self.host_address,
            listener=listener,
            fabric_sockets=fabric_sockets,
            find=NodeAddresses(cluster.nodes).sockets,
            access=lambda: head_access.access(cluster, "kube-proxy"),
            report=lambda counts: NodeConnections(name=self.node.name, **counts).write(cluster.nodes, index),
        )

    def _pass_notifications(self, key: int, descriptor: int) -> None:
        """A server that does not take it would never answer that container. The next one inherits all of them."""
        if not self.supervisor.send(SOCKETS, messages.Notifications(key=key), descriptor):
            self.supervisor.restart(SOCKETS)

    def _add_helpers(self) -> None:
        cluster = self.node.cluster
        if not self.node.is_head:
            self._helper("watch-head", self._watch_head, restart=RestartPolicy.ON_FAILURE)
        else:
            if self.job is not None:
                self._helper("time-limit", self._watch_time_limit, restart=RestartPolicy.ON_FAILURE)
            if cluster.provisioning:
                self._command("provisioner", provisioner_argv(sys.executable, cluster.directory))
            if cluster.bridge is not None:
                image = ["--image", cluster.bridge] if cluster.bridge else []
                argv = ["bridge", "--name", cluster.name, *image, *cluster.bridge_options]
                self._command("bridge", python_argv("pinnace", *argv))
        if self.node.has_ranks:
            self._helper("ranks", self._serve_ranks)

    def _helper(
        self, name: str, work: Callable[[Channel], None], restart: RestartPolicy = RestartPolicy.ALWAYS
    ) -> None:
        self.supervisor.add(
            Service(name=name, run=Function(work=work), restart=restart, on_message=self._helper_message)
        )

    def _command(self, name: str, argv: list[str]) -> None:
        """A program on the host's network, where Slurm is."""
        log = self.node.cluster.logs(self.node.name) / f"{name}.log"
        self.supervisor.add(Service(name=name, run=Command(argv=argv, log=log, ignores_slurm_signals=True)))

    def _helper_message(self, message: messages.Message) -> None:
        match message:
            case messages.Stop():
                self.init.send(messages.Stop())
            case messages.Failed(reason=reason):  # of the one that watches the head
                raise NodeError(reason, hint=self._ports_hint())
            case messages.Leave(exit_code=code):  # of the pod runner
                self.exit_code = code
                self.init.send(messages.Leave())
                self._end_ranks()

    # --- the loop -------------------------------------------------------------------------------------------------

    def _loop(self, wake: int, signals: list[int]) -> None:
        """Until the node has ended. Raises if that was not in order."""
        while True:
            self.supervisor.tick()
            if self._reap():
                return
            self._write_services()
            channels = self.supervisor.channels()
            poll = select.poll()
            descriptors = (wake, self.init.fileno(), self.shims.fileno() if self.shims else -1, *channels)
            for descriptor in (number for number in descriptors if number >= 0):
                poll.register(descriptor, select.POLLIN)
            if self.notifications:
                self.notifications.register(poll)
            pause = self.supervisor.next_tick()
            for descriptor, _ in poll.poll(None if pause is None else pause * 1000):
                if descriptor == wake:
                    os.read(wake, WAKEUPS)
                elif descriptor == self.init.fileno():
                    self._init_message()
                elif self.shims and descriptor == self.shims.fileno():
                    self._start_shim(self.shims)
                elif descriptor in channels:
                    self.supervisor.receive(channels[descriptor])
                elif self.notifications:
                    self.notifications.handle(descriptor)
            if signals:
                signals.clear()
                self._stop()

    def _stop(self) -> None:
        """End in order. A pod that has the node for itself is ended first; its runner then says that it has left."""
        if not self.supervisor.send("pod-runner", messages.EvictPod()):
            self.init.send(messages.Stop())

    def _init_message(self) -> None:
        match self.init.receive(wait=False):
            case messages.ServicesChanged(services=services):
                self.inside, self.unwritten = services, True
                requirements.require_watches_while_starting(services, time.monotonic() - self.begun)
            case messages.Drained():
                self._tell_others()
            case messages.Failed(reason=reason):
                self.failure = reason
            case None:
                self.init.close()  # its monitor ends next

    def _tell_others(self) -> None:
        """On the head, whose cluster has no pods any more: the other nodes end now, beside this one.

        They look at the head's record when the link that they hold is closed (``node.head_watch``).
        """
        if self.node.is_head:
            self._write_end()
            self.supervisor.kill("links")

    def _write_end(self) -> None:
        record = NodeRecord(name=self.node.name, state=NodeState.ENDED, job=self.job)
        record.write(self.node.cluster.node_file(self.node.index))

    def _start_shim(self, listener: socket.socket) -> None:
        """In a process of its own. If there is none to be had, the connection ends, and the kubelet tries again."""
        shim = self.node.binary("containerd-shim-runc-v2")
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                has_cgroup = self.node.cgroup is not None
                first = first_process(self.monitor)
                fork(lambda: shim_server.start_shim(connection, shim, first, has_cgroup=has_cgroup))

    def _reap(self) -> bool:
        """Take note of all children that have ended. Whether the node has."""
        for pid, status in ended_children():
            if pid == self.monitor:
                self._ended(os.waitstatus_to_exitcode(status))
                return True
            ended = self.supervisor.reaped(pid, status)
            if ended and not ended.done:
                say(f"{ended.service.name} ended ({ended.last_end}); starting it again")
        return False

    def _ended(self, code: int) -> None:
        """The monitor has ended, and with it the node."""
        if code:
            while self.init.fileno() >= 0:
                self._init_message()
            raise NodeError(self.failure or f"its first process ended with {describe_end(code)}")
        if ranks := self._end_ranks():
            os.waitpid(ranks, 0)

    def _end_ranks(self) -> int | None:
        """Tell the helper that has started ranks on other hosts to clean up there. Gives its pid, while it does."""
        self.supervisor.send("ranks", messages.Stop())
        running = self.supervisor.find("ranks")
        if running is None or running.child is None:
            return None
        running.done = True  # not to be started again
        return running.child.pid

    def _services_changed(self) -> None:
        self.unwritten = True

    def _write_services(self) -> None:
        if self.unwritten:
            self.unwritten = False
            services = (*self.supervisor.report(), *self.inside)
            report = NodeServices(name=self.node.name, time=time.time(), services=services)
            report.write(self.node.cluster.nodes, self.node.index)
            self.timeline.save(node_marks(self.node.cluster.directory, self.node.name))

    # --- what helpers do ------------------------------------------------------------------------------------------

    def _run_pod(self, channel: Channel) -> None:
        from pinnace.podjobs import pod_runner  # noqa: PLC0415 - a tenth of a second, for which the node need not wait

        containerd = self.lease.containerd if self.lease else self.node.scratch / "containerd"
        runner = pod_runner.PodRunner(self.node, self.turn, containerd, self.timeline)
        on_message(channel, messages.EvictPod, runner.evict)
        exit_code = runner.run()
        runner.retire_node()
        channel.send(messages.Leave(exit_code=exit_code))
        runner.keep_node_retired()

    def _serve_ranks(self, channel: Channel) -> None:
        """Containers find the socket at once; what is behind it is loaded for the first who asks, and most never do."""
        listener = launcher.listen(launcher.directory(self.node.scratch))
        poll = select.poll()
        for readable in (listener, channel):
            poll.register(readable, select.POLLIN)
        if channel.fileno() in dict(poll.poll()):
            return
        from pinnace.podjobs.ranks import server  # noqa: PLC0415 - as above

        ranks = server.RankServer(self.node, self.monitor)
        on_message(channel, messages.Stop, ranks.end)
        ranks.serve(listener)

    def _watch_time_limit(self, channel: Channel) -> None:
        """End the cluster in order before its job's time is over."""
        from pinnace.node import time_limit  # noqa: PLC0415 - only the head's agent needs it

        limit = time_limit.wait_for_end(self.job or 0)
        if limit is not None:
            write_json(self.node.cluster.ending, {"limit": limit})
            channel.send(messages.Stop())

    def _watch_head(self, channel: Channel) -> None:
        """End this node when the head has ended."""
        unreachable = head_watch.wait_for_end(self.node.cluster, self.node.index)
        channel.send(messages.Failed(reason=unreachable) if unreachable else messages.Stop())

    def _route(self, channel: Channel, tuns: list[int], links_at: socket.socket) -> None:
        """Route the node's packets."""
        cluster = self.node.cluster
        loop = router.packet_loop(tuns, cluster.ranges, say)
        router.run(
            loop,
            links_at,
            self.secret,
            index=self.node.index,
            address=self.host_address,
            ranges=cluster.ranges,
            find=NodeAddresses(cluster.nodes).links,
            name_servers=self.name_servers,
            on_stop=lambda: channel.send(messages.Stop()),
        )

    # --- sockets --------------------------------------------------------------------------------------------------

    def _listen(self) -> socket.socket:
        """A port of this host that the others can reach."""
        ports = self.node.cluster.ports
        return listening.bind(self.host_address, listening.PortRange.parse(ports) if ports else None, BACKLOG)

    def _ports_hint(self) -> str:
        """What to do where a firewall is between nodes."""
        if ports := self.node.cluster.ports:
            return f"Does a firewall let the ports {ports} through between these hosts? Ask your administrators."
        return (
            "Is there a firewall between compute nodes? Ask your administrators which ports it lets through for users, "
            "and give them with --ports, or as `ports` in pinnace.toml."
        )

    def _publish(self, port: int) -> socket.socket:
        try:
            return socket.create_server((self.host_address, port), backlog=BACKLOG)
        except OSError as error:
            raise OSError(error.errno, f"port {port} cannot be published: {error.strerror}") from error


def _require_certificates(code: int) -> None:
    if code:
        raise NodeError("the nodes' certificates could not be made; the lines above say why")


def on_message(channel: Channel, kind: type[messages.Message], react: Callable[[], None]) -> None:
    """In a helper: call a function, from a thread, when the agent has sent a message of that kind."""

    def listen() -> None:
        while (message := channel.receive()) is not None:
            if isinstance(message, kind):
                react()

    threading.Thread(target=listen, daemon=True, name="agent").start()


def watch_signals() -> tuple[int, list[int]]:
    """From now on signals are only noted, for the loop; gives the descriptor that wakes it, and the signals that came.

    While a node is made, its monitor must not be left alone: if the agent ended, Slurm would kill the monitor before it
    has removed the node's files.
    """
    wake = wake_on_signals()
    signals: list[int] = []
    for number in SLURM_SIGNALS:
        signal.signal(number, lambda number, _frame: signals.append(number))
    return wake, signals


def leave_on_signals() -> None:
    """Before there is a node, a signal ends the agent, which first removes what it has made."""

    def leave(number: int, _frame: object) -> None:
        ignore_signals()
        sys.exit(128 + number)

    for number in SLURM_SIGNALS:
        signal.signal(number, leave)


def ignore_signals() -> None:
    """From now on nobody can end the node: it has ended.

    When Python ends it takes its handlers away, and a signal would kill it then: Slurm would call a job failed whose
    work is done.
    """
    for number in SLURM_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
