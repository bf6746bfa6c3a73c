"""PID 1 of a node: sets up what is inside its namespaces, starts its processes and keeps them running."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.controlplane.tasks import TASKS
from pinnace.images import cache, cache_closing
from pinnace.network import netns_sockets
from pinnace.network.netns_setup import set_up_netns
from pinnace.network.no_proxy import no_proxy_variables
from pinnace.node import messages, notify_keeper, shim_server
from pinnace.node.forking import WAKEUPS, ended_children, fork, wake_on_signals
from pinnace.node.limits import limiter
from pinnace.node.limits.affinity import CpuPool
from pinnace.node.limits.limiter import Limiter
from pinnace.node.messages import Channel
from pinnace.node.readiness import after, listening
from pinnace.node.services import containerd, devices, host_network, kube_proxy, kubelet, registry
from pinnace.node.services.runc_wrapper import Edits, Requests, answer
from pinnace.node.supervisor import NO_PROCESS, Command, Function, RestartPolicy, Service, Supervisor
from pinnace.podjobs.ranks import launcher as ranks
from pinnace.sandbox import cgroups
from pinnace.sandbox.environment import restrict_environment
from pinnace.sandbox.ids import last_id
from pinnace.sandbox.keeping_groups import has_groups
from pinnace.sandbox.linux import sethostname
from pinnace.sandbox.mounts import VOLUMES, make_read_only, mount_node
from pinnace.sandbox.namespaces import IN_ORDER
from pinnace.sandbox.one_user import ignore_id_changes
from pinnace.spec import API_PORT, HEAD, METRICS_DELAY, appearance
from pinnace.storage.directories import Directories
from pinnace.timeline.recorder import MarkEvent, Recorder, StepName

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.spec import NodeSpec

RUN = Path("/run/pinnace")
NOTIFY_SOCKET = RUN / "seccomp.sock"  # to which runc sends the descriptors of containers' notifications
READERS_LIMIT = 1.5  # seconds; a kubelet looks once a second whether a log that is followed has ended
POLL_INTERVAL = 0.01  # seconds between looks at a file or a table
MAX_REASON = 2048  # characters


def run_init(
    node: NodeSpec,
    line: socket.socket,
    name_servers: list[str],
    lease: cache.CacheLease | None,
    timeline: Recorder,
) -> None:
    """Be the first process of a node. ``line`` leads to the agent, which is told the reason if this fails."""
    agent = Channel(line)
    timeline.mark(StepName.NAMESPACES, MarkEvent.END)
    try:
        Init(node, agent, name_servers, lease, timeline).run()
    except BaseException as error:
        agent.send(messages.Failed(reason=str(error)[:MAX_REASON]))
        raise


class Init:
    """The life of a node."""

    def __init__(
        self,
        node: NodeSpec,
        agent: Channel,
        name_servers: list[str],
        lease: cache.CacheLease | None = None,
        timeline: Recorder | None = None,
    ) -> None:
        self.node = node
        self.agent = agent
        self.name_servers = name_servers
        self.logs = node.cluster.logs(node.name)
        self.timeline = timeline or Recorder()
        self.supervisor = Supervisor(self._services_changed, self.timeline)
        self.lease = lease
        self.ending = False
        self.run_directory = RUN
        self.notify = str(NOTIFY_SOCKET) if node.has_native_sockets else ""
        self.keeps_groups = False  # whether containers can keep groups of the user
        self.has_cgroups = False  # whether containers have cgroups
        self.network_is_up = RUN / "network-is-up"
        self.certificate = appearance(Path(node.secret(f"node-{node.name}.kubeconfig")))
        self.api = self.timeline.ready(StepName.API, listening(str(node.cluster.ranges.node(HEAD)), API_PORT))

    def run(self) -> None:
        wake = wake_on_signals()
        resolv_conf = host_network.read_lenient(Path("/etc/resolv.conf"))  # perhaps a link into the host's /run
        with self.timeline.step(StepName.MOUNTS):
            self._mounts()
        self.write(host_network.RESOLV_CONF, resolv_conf, 0o644)
        if not last_id(Path("/proc/self/uid_map").read_text()):
            ignore_id_changes()
        else:
            self.keeps_groups = has_groups()
        if self.node.is_head:
            self._api_server()
        self._runtime()
        with self.timeline.step(StepName.NETWORK):
            self._network()
        self.network_is_up.touch()
        pool = CpuPool.of_this_process(self.node.allocation.cpus)
        edits = Edits(
            launcher=ranks.added(self.node, os.environ) if self.node.has_ranks else None,
            host=partial(host_network.describe, self.node, RUN),
            notify=self.notify,
            limiter=None if self.has_cgroups else Limiter(pool=pool, tasks=TASKS, run_directory=RUN),
            keep_groups=self.keeps_groups,
        )
        bundles = Requests(RUN / "bundles")
        self._services()
        self._limits(pool)
        while True:
            self.supervisor.tick()
            for pid, status in ended_children():
                self.supervisor.reaped(pid, status)
            listeners = [sock.fileno() for sock in self.supervisor.listeners()]
            poll = select.poll()
            for readable in (wake, self.agent.fileno(), bundles.descriptor, *listeners):
                poll.register(readable, select.POLLIN)
            pause = self.supervisor.next_tick()
            for descriptor, _ in poll.poll(None if pause is None else pause * 1000):
                if descriptor == self.agent.fileno():
                    self._obey()
                elif descriptor == bundles.descriptor:
                    for request in bundles.read():
                        self._edit_bundle(request, edits)
                elif descriptor == wake:
                    os.read(wake, WAKEUPS)

    def _mounts(self) -> None:
        binds = self.node.cluster.binds | (ranks.binds(self.node.scratch) if self.node.has_ranks else {})
        with cgroups.entering(self.node.cgroup) as entry:
            mount_node(self.node.scratch, binds, self.lease.containerd if self.lease else None)
        self.has_cgroups = entry.entered
        if entry.refusal:
            sys.stderr.write(f"cgroups: {entry.refusal}; limits are kept {cgroups.OTHERWISE}\n")
            sys.stderr.flush()
        if self.node.cluster.restriction:
            make_read_only(self.node.cluster.restriction.read_only)
        sethostname(self.node.name)
        self._environment()

    def _environment(self) -> None:
        """For all that runs here: what it needs of the user's own, but for what only has a meaning outside."""
        restrict_environment()
        (RUN / "tmp").mkdir()
        os.environ["TMPDIR"] = str(RUN / "tmp")  # what a killed process has in there, the host's own would keep
        os.environ.update(no_proxy_variables(os.environ, "localhost", *map(str, self.node.cluster.ranges.all)))

    def _network(self) -> None:
        """Set up the network, and pass to the agent what it serves on the host's: see ``messages.Fabric``."""
        ranges, index = self.node.cluster.ranges, self.node.index
        queues, egress_listener = set_up_netns(ranges, index, last_id(Path("/proc/self/gid_map").read_text()))
        proxy, proxy_inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sockets, sockets_inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        served = {"egress": egress_listener, "proxy": proxy, "sockets": sockets}
        if self.notify:
            served["notify"] = notify_keeper.listen(self.notify)
        if self.node.cluster.has_host_network:
            served["shims"] = shim_server.listen(RUN / host_network.SOCKET)
        names = (*(f"{messages.TUN_QUEUE}{number}" for number in range(len(queues))), *served)
        self.agent.send(messages.Fabric(names=names), *queues, *(sock.fileno() for sock in served.values()))
        for queue in queues:
            os.close(queue)
        for sock in served.values():
            sock.close()
        self.task("netns-sockets", lambda: netns_sockets.serve(proxy_inside, sockets_inside), RestartPolicy.ALWAYS)

    def _runtime(self) -> None:
        """containerd and the kubelet. On a node for one pod they are loaded while its network is made."""
        containerd.add(self)
        kubelet.add(self, self.api, self.certificate)
        if self.node.pod:
            self.supervisor.tick()

    def _services(self) -> None:
        node, api, certificate = self.node, self.api, self.certificate
        if node.is_head:
            self._control_plane()
        registry.add(self)
        kube_proxy.add(self, api)
        late = after(METRICS_DELAY)
        self.forked("usage", self._serve_usage, waits_for=lambda: late() and certificate())
        if node.is_head and node.cluster.provisioning:
            self.forked("archive", self._serve_archive, waits_for=lambda: api() and certificate())
        if node.offer.resources:
            devices.add(self)
        if node.volumes:
            self.forked("storage", self._serve_storage, waits_for=api)

    def _limits(self, pool: CpuPool) -> None:
        """What makes limits of containers hold, and evicts pods. With cgroups, nothing of it is for a single pod."""
        if self.has_cgroups and self.node.pod:
            return
        Requests(RUN / limiter.FIFO)  # which is read by the service alone, and kept open here, so that nothing is lost
        self.forked("limits", lambda: self._serve_limits(pool))

    # Each in a process of its own, which alone loads what it needs. Forked, it shares what init has loaded.

    def _serve_limits(self, pool: CpuPool) -> None:
        from pinnace.node.limits import service  # noqa: PLC0415

        service.serve(self.node, pool, RUN, containerd.CONTAINERD_SOCKET)

    def _serve_usage(self) -> None:
        from pinnace.node.services import usage  # noqa: PLC0415

        usage.serve(self.node)

    def _serve_archive(self) -> None:
        from pinnace.podjobs import log_archive  # noqa: PLC0415

        log_archive.serve(self.node)

    def _serve_storage(self) -> None:
        from pinnace.storage import provisioner  # noqa: PLC0415

        provisioner.serve(self.node, Path(VOLUMES))

    def task(
        self,
        name: str,
        work: Callable[[], None],
        restart: RestartPolicy = RestartPolicy.ON_FAILURE,
        on_end: Callable[[int], None] = lambda _code: None,
    ) -> None:
        """Do something in a process of its own; again, if it fails and may."""
        run = Function(work=lambda _channel: work(), log=self.logs / "init.log")
        self.supervisor.add(Service(name=name, run=run, restart=restart, on_end=on_end))

    def forked(
        self,
        name: str,
        work: Callable[[], None],
        *,
        waits_for: Callable[[], bool] = lambda: True,
        restart: RestartPolicy = RestartPolicy.ALWAYS,
    ) -> None:
        """A service of ours, with a log of its own as other services have."""
        run = Function(work=lambda _channel: work(), log=self.logs / f"{name}.log")
        self.supervisor.add(Service(name=name, run=run, waits_for=waits_for, restart=restart))

    @staticmethod
    def _edit_bundle(request: str, edits: Edits) -> None:
        """For one container that is created: beside everything else, or here where there is no process to be had.

        Here nothing is waited for, because all of the node would wait.
        """
        try:
            fork(partial(answer, request, edits))
        except OSError as error:
            if error.errno not in NO_PROCESS:
                raise
            with contextlib.suppress(OSError):  # whoever asked is gone
                answer(request, edits, patience=0.0)

    def _api_server(self) -> None:
        """Started at once: all else waits for the API, and it takes longest."""
        from pinnace.node.services import api_server  # noqa: PLC0415 - the other nodes shall not wait for what they have not

        api_server.add(self)
        self.supervisor.tick()

    def _control_plane(self) -> None:
        from pinnace.node.services import control_plane  # noqa: PLC0415 - as above

        control_plane.add(self)

    def write(self, name: str, text: str, mode: int = 0o600) -> str:
        """A file for the node's processes. Gives its path."""
        path = RUN / name
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    def service(
        self,
        name: str,
        argv: list[str],
        *,
        essential: bool = False,
        environment: dict[str, str] | None = None,
        waits_for: Callable[[], bool] = lambda: True,
        output: Callable[[Path], int] | None = None,
        nice: int = 0,
    ) -> None:
        log = self.logs / f"{name}.log"
        run = Command(argv=argv, log=log, environment=environment or {}, output=output, nice=nice)
        self.supervisor.add(Service(name=name, run=run, essential=essential, waits_for=waits_for))

    def _obey(self) -> None:
        """The agent has sent a message, or is gone. To stop, the head deletes all pods; other nodes wait for theirs."""
        message = self.agent.receive()
        if message is None:
            os._exit(0)
        if self.ending:
            return
        self.ending = True
        self.timeline.mark(StepName.NODE_END, MarkEvent.BEGIN)
        if isinstance(message, messages.Leave):
            self.supervisor.stop("kube-proxy", "storage", "usage", "registry")
            self.task("leave", self._leave, RestartPolicy.NEVER, self._drained)
        else:
            if self.node.is_head:
                self.supervisor.stop("kube-controller-manager", "kube-scheduler", "storage")
            self.task("drain", self._drain, RestartPolicy.NEVER, self._drained)

    def _leave(self) -> None:
        """Nothing runs here any more. Whoever still reads a log has a moment to come to its end, and sees one."""
        deadline = time.monotonic() + READERS_LIMIT
        readers = connections(kubelet.KUBELET_PORT, Path("/proc/net/tcp").read_text())
        while time.monotonic() < deadline and connections(kubelet.KUBELET_PORT, Path("/proc/net/tcp").read_text()):
            time.sleep(POLL_INTERVAL)
        if readers:
            running = self.supervisor.find("kubelet")
            if running and running.child:
                os.kill(running.child.pid, signal.SIGTERM)
            time.sleep(0.1)  # the ends of its connections are on their way

    def _drain(self) -> None:
        """Wait for the containers to end; the head ends them, and what is only there as long as the cluster is."""
        from pinnace.controlplane import drain  # noqa: PLC0415 - as above

        if self.node.is_head:
            drain.delete_pods(self.node)
            Directories(self.node.cluster.volumes).end()  # only here are files of the pods' users ours to remove
        else:
            drain.wait_for_containers()

    def _drained(self, _code: int) -> None:
        """No pod runs any more. Leave containerd so that the next cluster finds its images; nobody uses it now."""
        if images := self.supervisor.release("images"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(images, signal.SIGKILL)
        self.agent.send(messages.Drained())
        user, used = self.supervisor.release("kubelet"), self.supervisor.release("containerd")
        # What is large takes the kernel a while to end. Nobody needs it any more.
        self.supervisor.kill(*(running.service.name for running in self.supervisor.services))
        if not self.lease or not used:
            os._exit(0)
        users = [user] if user else []
        self.task(
            "close-image-cache",
            lambda: cache_closing.seal(self.node.binary("ctr"), containerd=used, others=users),
            RestartPolicy.NEVER,
            lambda code: os._exit(0 if code else IN_ORDER),
        )

    def _services_changed(self) -> None:
        self.agent.send(messages.ServicesChanged(services=self.supervisor.report()))


def connections(port: int, table: str) -> int:
    """How many connections to a local port there are, in /proc/net/tcp."""
    rows = [line.split() for line in table.splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "01" for row in rows)
