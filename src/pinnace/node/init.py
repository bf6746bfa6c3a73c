"""PID 1 of a node: sets up what is inside its namespaces, starts its processes and keeps them running."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.images import cache, cache_closing, registry
from pinnace.interpreter import python_argv
from pinnace.network import proxies
from pinnace.network.netns_sockets import attend
from pinnace.network.wiring import wire
from pinnace.node import messages
from pinnace.node.forking import fork
from pinnace.node.messages import Channel
from pinnace.node.readiness import after, listening
from pinnace.node.services import configuration
from pinnace.node.services.kubelet_pacing import paced
from pinnace.node.services.runc_wrapper import Requests, answer, wrapper_script
from pinnace.node.supervisor import NO_PROCESS, Command, Function, RestartPolicy, Service, Supervisor
from pinnace.podjobs.ranks import launcher as ranks
from pinnace.sandbox.environment import forget_the_rest
from pinnace.sandbox.ids import last_id
from pinnace.sandbox.linux import sethostname
from pinnace.sandbox.mounts import VOLUMES, file_system, make_read_only, mount_node
from pinnace.sandbox.namespaces import IN_ORDER
from pinnace.sandbox.one_user import pretend
from pinnace.spec import API_PORT, HEAD, METRICS_DELAY, read_json
from pinnace.storage import provisioner_argv
from pinnace.storage.directories import Directories

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.spec import NodeSpec

RUN = Path("/run/pinnace")
READERS_LIMIT = 1.5  # seconds; a kubelet looks once a second whether a log that is followed has ended
PROXY_LIMIT = 5.0  # seconds after which kube-proxy starts even if the kubelet has not said that it is under way
POLL_INTERVAL = 0.01  # seconds between looks at a file or a table
MAX_REASON = 2048  # characters


def run_init(node: NodeSpec, line: socket.socket, name_servers: list[str], lease: cache.Lease | None) -> None:
    """Be the first process of a node. ``line`` leads to the agent, which is told the reason if this fails."""
    agent = Channel(line)
    try:
        Init(node, agent, name_servers, lease).run()
    except BaseException as error:
        agent.send(messages.Failed(reason=str(error)[:MAX_REASON]))
        raise


class Init:
    """The life of a node."""

    def __init__(
        self, node: NodeSpec, agent: Channel, name_servers: list[str], lease: cache.Lease | None = None
    ) -> None:
        self.node = node
        self.agent = agent
        self.name_servers = name_servers
        self.logs = node.cluster.logs(node.name)
        self.supervisor = Supervisor(self._services_changed)
        self.lease = lease
        self.ending = False

    def run(self) -> None:
        wake, _ = self._signals()
        self._mounts()
        self._network()
        if not last_id(Path("/proc/self/uid_map").read_text()):
            pretend()
        added = ranks.added(self.node, os.environ) if self.node.has_ranks else None
        bundles = Requests(RUN / "bundles")
        self._services()
        poll = select.poll()
        for readable in (wake, self.agent, bundles.descriptor):
            poll.register(readable, select.POLLIN)
        while True:
            self.supervisor.tick()
            self._reap()
            pause = self.supervisor.next_tick()
            for descriptor, _ in poll.poll(None if pause is None else pause * 1000):
                if descriptor == self.agent.fileno():
                    self._obey()
                elif descriptor == bundles.descriptor:
                    for request in bundles.read():
                        self._edit_bundle(partial(answer, request, added))
                else:
                    os.read(wake, 4096)

    @staticmethod
    def _signals() -> tuple[int, int]:
        """Let a child's end wake the loop."""
        wake, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        return wake, write

    def _mounts(self) -> None:
        binds = self.node.cluster.binds | (ranks.binds(self.node.scratch) if self.node.has_ranks else {})
        mount_node(self.node.scratch, binds, self.lease.containerd if self.lease else None)
        if self.node.cluster.restriction:
            make_read_only(self.node.cluster.restriction.read_only)
        sethostname(self.node.name)
        self._environment()

    def _environment(self) -> None:
        """For all that runs here: what it needs of the user's own, but for what only has a meaning outside."""
        forget_the_rest()
        (RUN / "tmp").mkdir()
        os.environ["TMPDIR"] = str(RUN / "tmp")  # what a killed process has in there, the host's own would keep
        os.environ.update(proxies.around(os.environ, "localhost", *map(str, self.node.cluster.ranges.all)))

    def _network(self) -> None:
        """Make the fabric on this node and hand its ends to the agent."""
        ranges, index = self.node.cluster.ranges, self.node.index
        tun, way_out = wire(ranges, index, last_id(Path("/proc/self/gid_map").read_text()))
        outside, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.agent.send(messages.Fabric(), tun, way_out.fileno(), outside.fileno())
        os.close(tun)
        way_out.close()
        outside.close()
        self.task("netns-sockets", lambda: attend(inside), RestartPolicy.ALWAYS)

    def _services(self) -> None:
        node = self.node
        if node.is_head:
            self._control_plane()
        wrapper = wrapper_script(node.binary("runc"), str(RUN / "bundles"), launcher=node.has_ranks)
        runtime = self.write("runc", wrapper, 0o755)
        cni = RUN / "cni"
        cni.mkdir()
        self.write("cni/10-pinnace.conflist", json.dumps(configuration.cni_conflist(node)))
        containerd = configuration.containerd_toml(
            node,
            runtime=runtime,
            sandbox_image=configuration.SANDBOX_IMAGE,
            cni_config=str(cni),
            certs=f"{node.cluster.images}/hosts",
        )
        self.task("images", self._import_images)
        resolv = "".join(
            f"nameserver {server}\n" for server in self.name_servers and [str(node.cluster.ranges.resolver)]
        )
        host = {
            "cpus": os.cpu_count() or 1,
            "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        }
        kubelet = configuration.kubelet_config(
            node,
            resolv_conf=self.write("resolv.conf", resolv),
            system_reserved=configuration.reserved(node.share, **host),
            file_system=file_system("/var/lib/kubelet", os.fsdecode(Path("/proc/self/mounts").read_bytes())),
        )
        bin_dir = str(Path(node.binary("containerd")).parent)
        path = {"PATH": f"{bin_dir}:{os.environ['PATH']}"}
        self.service(
            "containerd",
            [node.binary("containerd"), "--config", self.write("containerd.toml", containerd)],
            environment=path,
            waits_for=self._verified(),
        )
        registry_file = self.write("registry.json", json.dumps(registry.config(f"{node.cluster.images}/registry")))
        self.service(
            "registry", registry.argv(node.binary("registry"), registry_file), environment=registry.ENVIRONMENT
        )
        certificate = Path(node.secret(f"node-{node.name}.kubeconfig"))
        api = listening(str(node.cluster.ranges.node(0)), API_PORT)
        runtime_there, under_way = Path(configuration.CONTAINERD_SOCKET).exists, RUN / "kubelet-under-way"
        self.service(
            "kubelet",
            configuration.kubelet_argv(node, self.write("kubelet.json", json.dumps(kubelet))),
            waits_for=lambda: certificate.exists() and (node.tenant is not None or runtime_there()) and api(),
            output=partial(paced, ready=runtime_there, under_way=under_way) if node.tenant else None,
        )
        proxy = self.write("kube-proxy.json", json.dumps(configuration.kube_proxy_config(node)))
        # The pod's own start comes first where a node is for one; Services are there when its program has begun.
        anyway = after(PROXY_LIMIT)
        turn, polite = (lambda: under_way.exists() or anyway(), 5) if node.tenant else (api, 0)
        self.service("kube-proxy", [node.binary("kube-proxy"), f"--config={proxy}"], waits_for=turn, nice=polite)
        own = [node.secret(f"node-{node.name}.crt"), node.secret(f"node-{node.name}.key"), node.secret("ca.crt")]
        own.append(str(node.cluster.ranges.node(HEAD)))  # who asks is there
        usage = python_argv("pinnace.node.services.usage", node.address, *own, python=sys.executable)
        late = after(METRICS_DELAY)
        self.service("usage", usage, waits_for=lambda: late() and certificate.exists())
        if node.is_head and node.cluster.provisioning:
            kept = str(node.cluster.directory / "pods")
            archive = python_argv("pinnace.podjobs.log_archive", kept, node.address, *own, python=sys.executable)
            self.service("archive", archive, waits_for=lambda: api() and certificate.exists())
        if node.volumes:
            self.service("storage", provisioner_argv(node, sys.executable, VOLUMES), waits_for=api)

    def _verified(self) -> Callable[[], bool]:
        """Look whether the images of earlier clusters are still whole, while other things start."""
        if not self.lease or not self.lease.parts:
            return lambda: True
        parts, done = self.lease.parts, RUN / "verified"

        def verify() -> None:
            cache.verify(cache_closing.ROOT, parts)
            done.touch()

        self.task("verify-image-cache", verify)
        return done.exists

    def _import_images(self) -> None:
        """Put the sandbox image into containerd, then get from the registry what the cluster's pods will want."""
        os.setpgid(0, 0)
        images = self.node.cluster.directory / "images"
        ctr = [self.node.binary("ctr"), "--namespace", "k8s.io", "images"]
        hosts = f"--hosts-dir={self.node.cluster.images}/hosts"
        while not os.path.exists(configuration.CONTAINERD_SOCKET):  # noqa: PTH110
            time.sleep(POLL_INTERVAL)
        with (self.logs / "images.log").open("ab") as log:
            for args in (
                ["import", "--local", str(images / "pause.tar")],
                *(["pull", hosts, name] for name in self._wanted(images)),
            ):
                subprocess.run([*ctr, *args], stdout=subprocess.DEVNULL, stderr=log, check=False, timeout=600)

    def _wanted(self, images: Path) -> list[str]:
        """What every node gets in advance; one that is for a single pod gets what that pod asks for."""
        if self.node.tenant:
            return list(self.node.images)
        wanted: list[str] = read_json(images / "wanted.json") or []
        return wanted

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

    @staticmethod
    def _edit_bundle(work: Callable[[], None]) -> None:
        """For one container that is created: beside everything else, or here where there is no process to be had."""
        try:
            fork(work)
        except OSError as error:
            if error.errno not in NO_PROCESS:
                raise
            with contextlib.suppress(OSError):  # whoever asked is gone
                work()

    def _control_plane(self) -> None:
        from pinnace.node.services import control_plane  # noqa: PLC0415 - the other nodes shall not wait for what they have not

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
        readers = connections(configuration.KUBELET_PORT, Path("/proc/net/tcp").read_text())
        while time.monotonic() < deadline and connections(
            configuration.KUBELET_PORT, Path("/proc/net/tcp").read_text()
        ):
            time.sleep(POLL_INTERVAL)
        if readers:
            kubelet = self.supervisor.find("kubelet")
            if kubelet and kubelet.child:
                os.kill(kubelet.child.pid, signal.SIGTERM)
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
        kubelet, containerd = self.supervisor.release("kubelet"), self.supervisor.release("containerd")
        if not self.lease or not containerd:
            os._exit(0)
        others = [kubelet] if kubelet else []
        self.task(
            "close-image-cache",
            lambda: cache_closing.seal(self.node.binary("ctr"), containerd=containerd, others=others),
            RestartPolicy.NEVER,
            lambda code: os._exit(0 if code else IN_ORDER),
        )

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self.supervisor.reaped(*ended)

    def _services_changed(self) -> None:
        self.agent.send(messages.ServicesChanged(services=self.supervisor.report()))


def connections(port: int, table: str) -> int:
    """How many connections to a local port there are, in /proc/net/tcp."""
    rows = [line.split() for line in table.splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "01" for row in rows)
