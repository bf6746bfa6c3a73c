"""Starts ranks for the containers of a pod that is a job: the agent's helper that serves the launchers.

It runs on the host's network, where Slurm is. Only the pod's containers and the user can reach the socket, and the
kernel identifies the peer (``peer``). Nothing of a container's environment is on a command line; ranks read it from a
file in the cluster's directory, which only the user can read.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import queue
import select
import signal
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.tasks import TASKS
from pinnace.errors import PinnaceError, RankError, SlurmError, UsageError
from pinnace.interpreter import python_argv
from pinnace.network import listening
from pinnace.network.accepting import Acceptor, raise_file_limit
from pinnace.network.handshake import Protocol, listener_name
from pinnace.network.handshake import listening as handshake
from pinnace.podjobs.ranks import container as containers
from pinnace.podjobs.ranks.ids import ProcessCredentials, credentials_of
from pinnace.podjobs.ranks.peer import Peer, read_environment
from pinnace.sandbox.entering import first_process
from pinnace.sandbox.mountinfo import mount_table
from pinnace.slurm import host_name
from pinnace.slurm.allowed_options import parse_srun
from pinnace.slurm.commands import Slurm
from pinnace.slurm.variables import submission_environment
from pinnace.spec import NodeRecord

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pinnace.podjobs.ranks.container import ContainerSpec
    from pinnace.slurm.allowed_options import SrunCall
    from pinnace.spec import NodeSpec

COPY_BACKLOG = 512  # of the listener from which companions copy
REQUEST_TIMEOUT = 10.0  # seconds for the request of a launcher or a companion
ACCEPT_PAUSE = 0.1  # seconds before the next accept(2) when no descriptor is free
WORLD_TIMEOUT = 600.0  # seconds to make a world, with the copy of its image
STEP_START_TIMEOUT = 120  # seconds that Slurm may take to start the companions
COMPANION_END_TIMEOUT = 5.0  # seconds for companions to remove their worlds
KILL_DELAY = 10.0  # seconds between SIGTERM and SIGKILL, for an srun whose launcher is gone
# These make mpirun start its daemons on other hosts with `srun`: of Open MPI, PRRTE, MPICH and Intel MPI.
MPIRUN_VARIABLES = {
    "OMPI_MCA_plm": "slurm",
    "PRTE_MCA_plm": "slurm",
    "HYDRA_LAUNCHER": "slurm",
    "I_MPI_HYDRA_BOOTSTRAP": "slurm",
}
PREFERRED_MPI = ("pmix", "pmi2")  # plugins of srun through which ranks find each other


@dataclass(frozen=True, kw_only=True)
class Request:
    """The command of a launcher, with its environment and credentials."""

    pid: int
    argv: tuple[str, ...]
    environment: dict[str, str]
    directory: str
    identity: ProcessCredentials

    @property
    def name(self) -> str:
        return Path(self.argv[0]).name


def read_request(peer: Peer, environment: int, first: int) -> Request:
    """Read a launcher's command from /proc. It passes its environment itself: other processes may not read it."""
    about = Path("/proc", str(peer.pid))

    def strings(content: bytes) -> list[str]:
        return [os.fsdecode(word) for word in content.split(b"\0")[:-1]]

    variables = [entry.partition("=") for entry in strings(read_environment(environment))]
    maps = (Path(f"/proc/{first}/{kind}").read_text() for kind in ("uid_map", "gid_map"))
    status = (about / "status").read_text()
    request = Request(
        pid=peer.pid,
        argv=tuple(strings((about / "cmdline").read_bytes())),
        environment={name: value for name, _, value in variables},
        directory=os.readlink(about / "cwd"),  # noqa: PTH115 - not a path of ours
        identity=credentials_of(status, *maps),
    )
    if not peer.is_described_by(status):
        raise RankError("whoever asked has ended, or is another by now")
    return request


def step_argv(call: SrunCall, task: Sequence[str], *, mpi: str | None, cpus: str | None) -> list[str]:
    """The command of Slurm's own srun for the ranks."""
    defaults = {"mpi": mpi, "cpus-per-task": cpus}
    given = [f"--{name}={value}" for name, value in defaults.items() if value and name not in call.names]
    return ["srun", "--overlap", *given, *call.argv(), "--", *task]


def companion_argv(others: Sequence[str], task: Sequence[str]) -> list[str]:
    """The command that starts one companion on each of the other hosts, overlapping with other steps."""
    count = str(len(others))
    size = [f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", f"--nodelist={','.join(others)}"]
    alone = ["--overlap", "--cpus-per-task=1", "--mem=0", "--mpi=none", "--cpu-bind=none", "--gres=none"]
    return ["srun", *size, *alone, "--quiet", "--job-name=pinnace", f"--immediate={STEP_START_TIMEOUT}", "--", *task]


def default_mpi(plugins: Collection[str]) -> str | None:
    """The preferred one of the plugins that this Slurm has."""
    return next((name for name in PREFERRED_MPI if name in plugins), None)


class Companions:
    """The companions of some hosts, behind one pair of pipes. If they die, the next request starts them again."""

    def __init__(self, argv: list[str], environment: Mapping[str, str], count: int, log: Path) -> None:
        self.argv, self.environment, self.count, self.log = argv, environment, count, log
        self.process: subprocess.Popen[bytes] | None = None
        self.answers: dict[str, queue.SimpleQueue[dict[str, Any]]] = {}
        self.lock = threading.Lock()

    def make(self, world: str, container: ContainerSpec, who: ProcessCredentials) -> dict[str, int]:
        """Make a world on all of the hosts. Returns the PID of the process that holds it, by host."""
        command = {"do": "make", "world": world, "container": container.to_json(), "identity": who.to_json()}
        answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with self.lock:
            self.answers[world] = answers
            self._start()
            self._send(command)
        found: dict[str, int] = {}
        deadline = time.monotonic() + WORLD_TIMEOUT
        while len(found) < self.count:
            try:
                answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise RankError(f"after {WORLD_TIMEOUT:.0f} s the hosts are not ready for ranks") from None
            if "error" in answer:
                raise RankError(f"{answer.get('host', 'a host')} is not ready for ranks: {answer['error']}")
            found[answer["host"]] = answer["pid"]
        return found

    def end(self, world: str) -> None:
        with self.lock:
            self.answers.pop(world, None)
            with contextlib.suppress(OSError, RankError):
                self._send({"do": "end", "world": world})

    def close(self) -> None:
        if self.process and self.process.stdin:
            self.process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(COMPANION_END_TIMEOUT)

    def _start(self) -> None:
        if self.process and self.process.poll() is None:
            return
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()

    def _send(self, command: dict[str, Any]) -> None:
        if self.process and self.process.stdin:
            try:
                self.process.stdin.write(json.dumps(command).encode() + b"\n")
                self.process.stdin.flush()
            except BrokenPipeError:
                raise RankError(self._last_log_line()) from None

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        for line in process.stdout:
            with contextlib.suppress(ValueError, KeyError):  # not an answer of a companion
                answer = json.loads(line)
                self.answers[answer["world"]].put(answer)
        process.wait()
        for answers in list(self.answers.values()):
            answers.put({"error": self._last_log_line()})

    def _last_log_line(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it has ended without a word"


class RankServer:
    """All launches of a node."""

    def __init__(self, node: NodeSpec, monitor: int) -> None:
        self.node = node
        self.first = first_process(monitor)
        self.environment = dict(os.environ)
        self.job = self.environment["SLURM_JOB_ID"]
        self.host = host_name(self.environment)
        self.numbers = itertools.count()
        self.containers: dict[str, ContainerSpec] = {}  # by world
        self.files = node.cluster.ranks(node.name)
        self.lock = threading.Lock()
        self._mpi: str | None = None
        self._source = 0
        log = node.cluster.logs(node.name) / "ranks.log"
        module = python_argv("pinnace.podjobs.ranks.companion")
        self.here = Companions([*module, "--of", str(self.first)], self.environment, 1, log)
        self.there: Companions | None = None
        self.module, self.log = module, log

    @functools.cached_property
    def others(self) -> list[str]:
        """The other hosts of the job."""
        hosts = Slurm().hostnames(self.environment["SLURM_JOB_NODELIST"])
        return [host for host in hosts if host != self.host]

    def close(self) -> None:
        """End all companions, which remove their worlds."""
        for companions in filter(None, (self.here, self.there)):
            companions.close()

    def end(self) -> None:
        """From another thread: clean up on all hosts, and end this process."""
        signal.alarm(int(3 * COMPANION_END_TIMEOUT))  # whatever a thread of ours may hold
        self.close()
        os._exit(0)

    def serve(self, listener: socket.socket) -> None:
        """For ever. Slurm's signals are for others; what we start shall heed them."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        while True:
            try:
                line, _ = listener.accept()
            except OSError:  # too many open files; connections without a request are closed after a while
                time.sleep(ACCEPT_PAUSE)
                continue
            threading.Thread(target=self._serve_launcher, args=(line,), daemon=True).start()

    def _serve_launcher(self, line: socket.socket) -> None:
        """Serve one launcher until its command has ended."""
        with line:
            line.settimeout(REQUEST_TIMEOUT)
            word, files, _, _ = socket.recv_fds(line, 1, 4)
            line.settimeout(None)
            if not word or len(files) < 4:
                for file in files:
                    os.close(file)
                return
            streams = files[:3]
            code = 1
            try:
                with contextlib.closing(Peer.of(line)) as peer:
                    request = read_request(peer, files[3], self.first)
                    container = self._container(request.pid)
                    peer.require_alive()
                code = self._launch(request, container, line, streams)
            except PinnaceError as error:
                code = error.exit_code
                _write(streams[2], f"pinnace: {error.message}\n")
            except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
                _write(streams[2], f"pinnace: ranks cannot be started: {error!r}\n")
            finally:
                for file in files:
                    os.close(file)
            with contextlib.suppress(OSError):
                line.send(bytes([code]))

    def _launch(self, request: Request, container: ContainerSpec, line: socket.socket, streams: list[int]) -> int:
        if request.name == "srun":
            call = parse_srun(request.argv[1:])
            if not call.command:
                raise UsageError("srun: there is no program to run")
            command, directory = list(call.command), os.path.join(request.directory, call.directory or "")  # noqa: PTH118
        else:
            call, command, directory = None, [request.name, *request.argv[1:]], request.directory
        world = str(next(self.numbers))
        self.containers[world] = container
        file = self.files / f"{world}.json"
        try:
            about = {
                "argv": command,
                "environment": request.environment if call else MPIRUN_VARIABLES | request.environment,
                "directory": directory,
                "identity": request.identity.to_json(),
                "worlds": self._make(world, container, request.identity, everywhere=call is not None),
            }
            write_private(file, about)
            task = python_argv("pinnace.podjobs.ranks.rank", str(file))
            argv = task
            if call:
                nested = "SLURM_NODELIST" in request.environment  # an mpirun starts its daemons
                mpi = "none" if nested else self._default_mpi()
                argv = step_argv(call, task, mpi=mpi, cpus=self.environment.get("SLURM_CPUS_PER_TASK"))
            return self._run(argv, line, streams)
        finally:
            file.unlink(missing_ok=True)
            self.here.end(world)
            if self.there and call:
                self.there.end(world)
            del self.containers[world]

    def _run(self, argv: list[str], line: socket.socket, streams: list[int]) -> int:
        """Run a process with the launcher's streams and signals. Returns its exit code."""
        process = subprocess.Popen(
            argv, stdin=streams[0], stdout=streams[1], stderr=streams[2], env=self.environment, start_new_session=True
        )
        threading.Thread(target=_pass_signals, args=(line, process), daemon=True).start()
        code = process.wait()
        return code if code >= 0 else 128 - code

    def _container(self, pid: int) -> ContainerSpec:
        """The container of a process, by the device of its root."""
        device = os.stat(f"/proc/{pid}/root/").st_dev  # noqa: PTH116 - the root as the process sees it
        tasks = Path(f"/proc/{self.first}/root{TASKS}")
        for bundle in tasks.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if (bundle / "rootfs").stat().st_dev == device:
                    return containers.describe(
                        bundle.name,
                        json.loads((bundle / "config.json").read_text()),
                        node=mount_table(self.first),
                        host=mount_table(),
                        scratch=self.node.scratch,
                    )
        raise RankError("whoever asks is in no container of this node")

    def _make(
        self, world: str, container: ContainerSpec, who: ProcessCredentials, *, everywhere: bool
    ) -> dict[str, int]:
        made = self.here.make(world, container, who)
        if not (everywhere and self.others):
            return made
        for volume in container.volumes:
            if volume.kind is containers.VolumeKind.FIRST:
                raise RankError(f"the volume at {volume.target} is of a kind that other hosts cannot have")
        with self.lock:
            if self.there is None:
                self.there = self._companions_elsewhere()
        return made | self.there.make(world, container, who)

    def _companions_elsewhere(self) -> Companions:
        ports, address = self.node.cluster.ports, self.node_address()
        listener = listening.bind(address, listening.PortRange.parse(ports) if ports else None, COPY_BACKLOG)
        threading.Thread(target=self._serve_copies, args=(listener,), daemon=True).start()
        source = listener_name(self.node.index, *listener.getsockname()).decode()
        task = [*self.module, "--cluster", str(self.node.cluster.directory), "--from", source]
        environment = submission_environment(self.environment) | {"SLURM_JOB_ID": self.job}
        return Companions(companion_argv(self.others, task), environment, len(self.others), self.log)

    def node_address(self) -> str:
        record = NodeRecord.read(self.node.cluster.node_file(self.node.index))
        return record.address if record else ""

    def _serve_copies(self, listener: socket.socket) -> None:
        """Serve copies to companions, for ever. Each has to authenticate first."""
        raise_file_limit()
        name = listener_name(self.node.index, *listener.getsockname())
        secret = self.node.cluster.link_key

        def admit(sock: socket.socket, _index: int) -> None:
            threading.Thread(target=self._send_part, args=(sock,), daemon=True).start()

        Acceptor(listener, lambda: handshake(secret, lambda _index: Protocol.COPY, name), admit).run()

    def _send_part(self, sock: socket.socket) -> None:
        """Send a part of a container, as a tar, to an authenticated companion."""
        with sock, contextlib.suppress(OSError, ValueError, KeyError, IndexError, StopIteration):
            sock.settimeout(REQUEST_TIMEOUT)
            what = json.loads(sock.makefile("rb").readline(4096))
            sock.settimeout(None)
            argv = python_argv("pinnace.podjobs.ranks.packing", str(self.first), *self._part(what))
            with self.log.open("ab") as log:
                subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=sock.fileno(), stderr=log, check=False)

    def _part(self, what: dict[str, Any]) -> list[str]:
        if "image" in what:
            container = next(one for one in list(self.containers.values()) if one.image == what["image"])
            return ["--layers", *container.lower]
        container = self.containers[what["world"]]
        if what["part"] == "upper":
            return ["--path", container.upper]
        path = Path(container.volumes[what["part"]].source)
        return ["--path", str(path.parent), "--name", path.name]

    def _default_mpi(self) -> str | None:
        with self.lock:
            if self._mpi is None:
                with contextlib.suppress(SlurmError):
                    self._mpi = default_mpi(Slurm().mpi_plugins())
                self._mpi = self._mpi or "none"
            return self._mpi


def write_private(path: Path, data: object) -> None:
    """Write a new file that only the user can read."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(data, file)


def _pass_signals(line: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Pass the launcher's signals on to the process. If the launcher is gone, end the process."""
    with contextlib.suppress(OSError, ValueError):
        while process.poll() is None:
            readable, _, _ = select.select([line], [], [], 1.0)
            if not readable:
                continue
            number = line.recv(1)
            if not number:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(KILL_DELAY)
                process.kill()
                return
            process.send_signal(number[0])


def _write(stream: int, text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(stream, text.encode())
