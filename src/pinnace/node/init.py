"""PID 1 of a node: sets up what is inside its namespaces, starts its processes and keeps them running."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.images import cache, cache_closing, registry
from pinnace.interpreter import python_argv
from pinnace.network import netns_sockets
from pinnace.network.netns_setup import set_up_netns
from pinnace.network.no_proxy import no_proxy_variables
from pinnace.node.readiness import after, listening
from pinnace.node.services import configuration
from pinnace.node.services.kubelet_pacing import paced
from pinnace.node.services.runc_wrapper import Requests, answer, wrapper_script
from pinnace.node.supervisor import NO_PROCESS, Service, Supervisor
from pinnace.podjobs.ranks import launcher as ranks
from pinnace.sandbox.environment import restrict_environment
from pinnace.sandbox.ids import last_id
from pinnace.sandbox.linux import die_with_parent, sethostname
from pinnace.sandbox.mountinfo import filesystem_on, mount_table
from pinnace.sandbox.mounts import VOLUMES, make_read_only, mount_node
from pinnace.sandbox.namespaces import IN_ORDER
from pinnace.sandbox.one_user import ignore_id_changes
from pinnace.spec import API_PORT, HEAD, METRICS_DELAY, read_json, write_json
from pinnace.storage import provisioner_argv
from pinnace.storage.directories import Directories

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.spec import NodeSpec

RUN = Path("/run/pinnace")
END = b"end"
AT_ONCE = b"now"
READERS_LIMIT = 1.5  # seconds; a kubelet looks once a second whether a log that is followed has ended
PROXY_LIMIT = 5.0  # seconds after which kube-proxy starts even if the kubelet has not said that it is under way
TICK = 0.01  # seconds between looks at what services wait for, while any does


class Init:
    """The life of a node."""

    def __init__(
        self,
        node: NodeSpec,
        line: socket.socket,
        python: str,
        name_servers: list[str],
        lease: cache.CacheLease | None = None,
    ) -> None:
        self.node = node
        self.line = line
        self.python = python
        self.name_servers = name_servers
        self.logs = node.cluster.logs(node.name)
        self.supervisor = Supervisor(self._report)
        self.lease = lease
        self.drain = 0
        self.importing = 0
        self.sealing = 0

    def run(self) -> None:
        wake, _ = self._signals()
        self._mounts()
        self._network()
        if not last_id(Path("/proc/self/uid_map").read_text()):
            ignore_id_changes()
        added = ranks.added(self.node, os.environ) if self.node.has_ranks else None
        bundles = Requests(RUN / "bundles")
        self._services()
        poll = select.poll()
        for readable in (wake, self.line, bundles.descriptor):
            poll.register(readable, select.POLLIN)
        while True:
            self.supervisor.tick()
            waiting = any(running.process is None for running in self.supervisor.services)
            for descriptor, _ in poll.poll(TICK * 1000 if waiting else None):
                if descriptor == self.line.fileno():
                    self._obey()
                elif descriptor == bundles.descriptor:
                    for request in bundles.read():
                        self._answer(partial(answer, request, added))
                else:
                    os.read(wake, 4096)
            self._reap()

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
        restrict_environment()
        (RUN / "tmp").mkdir()
        os.environ["TMPDIR"] = str(RUN / "tmp")  # what a killed process has in there, the host's own would keep
        os.environ.update(no_proxy_variables(os.environ, "localhost", *map(str, self.node.cluster.ranges.all)))

    def _network(self) -> None:
        """Set up the network, and pass the TUN device, the egress listener and the netns socket pair to the agent."""
        ranges, index = self.node.cluster.ranges, self.node.index
        tun, egress_listener = set_up_netns(ranges, index, last_id(Path("/proc/self/gid_map").read_text()))
        outside, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            die_with_parent(signal.SIGKILL)
            outside.close()
            netns_sockets.serve(inside)
            os._exit(0)
        inside.close()
        socket.send_fds(self.line, [b"fabric"], [tun, egress_listener.fileno(), outside.fileno()])
        os.close(tun)
        egress_listener.close()
        outside.close()

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
        self.importing = self.background(self._import_images)
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
            file_system=filesystem_on("/var/lib/kubelet", mount_table()),
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
        usage = python_argv("pinnace.node.services.usage", node.address, *own, python=self.python)
        late = after(METRICS_DELAY)
        self.service("usage", usage, waits_for=lambda: late() and certificate.exists())
        if node.is_head and node.cluster.provisioning:
            kept = str(node.cluster.directory / "pods")
            archive = python_argv("pinnace.podjobs.log_archive", kept, node.address, *own, python=self.python)
            self.service("archive", archive, waits_for=lambda: api() and certificate.exists())
        if node.volumes:
            self.service("storage", provisioner_argv(node, self.python, VOLUMES), waits_for=api)

    def _verified(self) -> Callable[[], bool]:
        """Look whether the images of earlier clusters are still whole, while other things start."""
        if not self.lease or not self.lease.parts:
            return lambda: True
        parts, done = self.lease.parts, RUN / "verified"

        def verify() -> None:
            cache.verify(cache_closing.ROOT, parts)
            done.touch()

        self.background(verify)
        return done.exists

    def _import_images(self) -> None:
        """Put the sandbox image into containerd, then get from the registry what the cluster's pods will want."""
        os.setpgid(0, 0)
        images = self.node.cluster.directory / "images"
        ctr = [self.node.binary("ctr"), "--namespace", "k8s.io", "images"]
        hosts = f"--hosts-dir={self.node.cluster.images}/hosts"
        while not os.path.exists(configuration.CONTAINERD_SOCKET):  # noqa: PTH110
            time.sleep(TICK)
        with (self.logs / "images.log").open("ab") as log:
            for words in (
                ["import", "--local", str(images / "pause.tar")],
                *(["pull", hosts, name] for name in self._wanted(images)),
            ):
                subprocess.run([*ctr, *words], stdout=subprocess.DEVNULL, stderr=log, check=False, timeout=600)

    def _wanted(self, images: Path) -> list[str]:
        """What every node gets in advance; one that is for a single pod gets what that pod asks for."""
        if self.node.tenant:
            return list(self.node.images)
        wanted: list[str] = read_json(images / "wanted.json") or []
        return wanted

    def background(self, work: Callable[[], None]) -> int:
        """Do something once, beside everything else."""
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            die_with_parent(signal.SIGKILL)
            try:
                work()
            except Exception:  # noqa: BLE001 - it ends here, and says why
                with (self.logs / "init.log").open("a") as log:
                    traceback.print_exc(file=log)
                os._exit(1)
            os._exit(0)
        return pid

    def _answer(self, work: Callable[[], None]) -> None:
        """Beside everything else; or here, where there is no process to be had for it."""
        try:
            self.background(work)
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
        self.supervisor.add(
            Service(
                name=name,
                argv=argv,
                log=self.logs / f"{name}.log",
                essential=essential,
                environment=environment or {},
                waits_for=waits_for,
                output=output,
                nice=nice,
            )
        )

    def _obey(self) -> None:
        """The agent has spoken, or is gone. Asked to end, the head deletes all pods; other nodes wait for theirs."""
        word = self.line.recv(64)
        if word not in {END, AT_ONCE}:
            os._exit(0)
        if self.drain:
            return
        if word == AT_ONCE:
            self.supervisor.stop("kube-proxy", "storage", "usage", "registry")
            self.drain = self.background(self._leave)
        else:
            if self.node.is_head:
                self.supervisor.stop("kube-controller-manager", "kube-scheduler", "storage")
            self.drain = self.background(self._drain)

    def _leave(self) -> None:
        """Nothing runs here any more. Whoever still reads a log has a moment to come to its end, and sees one."""
        deadline = time.monotonic() + READERS_LIMIT
        readers = connections(configuration.KUBELET_PORT, Path("/proc/net/tcp").read_text())
        while time.monotonic() < deadline and connections(
            configuration.KUBELET_PORT, Path("/proc/net/tcp").read_text()
        ):
            time.sleep(TICK)
        if readers:
            for running in self.supervisor.services:
                if running.service.name == "kubelet" and running.process:
                    os.kill(running.process.pid, signal.SIGTERM)
            time.sleep(0.1)  # the ends of its connections are on their way

    def _drain(self) -> None:
        """Wait for the containers to end; the head ends them, and what is only there as long as the cluster is."""
        from pinnace.controlplane import drain  # noqa: PLC0415 - as above

        if self.node.is_head:
            drain.delete_pods(self.node)
            Directories(self.node.cluster.volumes).end()  # only here are files of the pods' users ours to remove
        else:
            drain.wait_for_containers()

    def _seal(self) -> int:
        """Leave containerd so that the next cluster finds its images. Nobody may use it meanwhile."""
        if self.importing:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.importing, signal.SIGKILL)
        kubelet, containerd = self.supervisor.release("kubelet"), self.supervisor.release("containerd")
        if not containerd:
            return 0
        others = [kubelet] if kubelet else []
        return self.background(
            lambda: cache_closing.seal(self.node.binary("ctr"), containerd=containerd, others=others)
        )

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self.sealing:
                    os._exit(0 if status else IN_ORDER)
                if pid == self.drain:
                    self.sealing = self._seal() if self.lease else 0
                    if not self.sealing:
                        os._exit(0)
                if pid == self.importing:
                    self.importing = 0
                self.supervisor.reaped(pid, status)

    def _report(self) -> None:
        report = {"name": self.node.name, "time": time.time(), "services": self.supervisor.report()}
        write_json(self.node.cluster.directory / "nodes" / f"{self.node.index}.services.json", report)


def connections(port: int, table: str) -> int:
    """How many connections to a local port there are, in /proc/net/tcp."""
    rows = [line.split() for line in table.splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "01" for row in rows)
