"""Starts ranks for the containers of a pod that is a job: the agent's helper at the other end of the launcher.

It runs on the host's network, where Slurm is. Only the pod's containers, and the user, can reach the socket, and the
kernel says who asks (``asking``). Nothing of a container's environment is on a command line; ranks read it from a file
in the cluster's directory, which is the user's alone.
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

from pinnace.errors import PinnaceError, UsageError
from pinnace.interpreter import python_argv
from pinnace.network import listening
from pinnace.network.accepting import Acceptor, raise_file_limit
from pinnace.network.handshake import Protocol, listener_name
from pinnace.network.handshake import listening as handshake
from pinnace.podjobs.ranks import asking
from pinnace.podjobs.ranks import container as containers
from pinnace.podjobs.ranks.entering import first_process
from pinnace.podjobs.ranks.ids import Identity, identity
from pinnace.sandbox.mountinfo import mount_table
from pinnace.slurm import host_name
from pinnace.slurm.allowed_options import parse_srun
from pinnace.slurm.commands import Slurm
from pinnace.slurm.variables import submission_environment
from pinnace.spec import NodeRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pinnace.podjobs.ranks.container import Container
    from pinnace.slurm.allowed_options import SrunCall
    from pinnace.spec import NodeSpec

BACKLOG = 512
HELLO_LIMIT = 10.0  # seconds
ACCEPT_PAUSE = 0.1  # seconds
MAKE_LIMIT = 600.0  # seconds for a world, with the copy of its image
STEP_LIMIT = 120  # seconds that Slurm may take to start the companions
END_LIMIT = 5.0  # seconds for companions to remove what they have made
GRACE = 10.0  # seconds between SIGTERM and SIGKILL, for an srun that nobody waits for
# An mpirun's own daemons on other hosts come with `srun`, whatever else the image has: Open MPI, PRRTE, MPICH, Intel.
BY_SRUN = {
    "OMPI_MCA_plm": "slurm",
    "PRTE_MCA_plm": "slurm",
    "HYDRA_LAUNCHER": "slurm",
    "I_MPI_HYDRA_BOOTSTRAP": "slurm",
}
PREFERRED = ("pmix", "pmi2")  # ways in which ranks find each other


class LaunchError(PinnaceError):
    """Ranks cannot be started."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a launcher asked for, and who it is."""

    pid: int
    argv: tuple[str, ...]
    environment: dict[str, str]
    directory: str
    identity: Identity

    @property
    def name(self) -> str:
        return Path(self.argv[0]).name


def read_request(peer: asking.Peer, environment: int, first: int) -> Request:
    """What a process was started with, from /proc. Its environment it has to open itself: others may not."""
    about = Path("/proc", str(peer.pid))

    def strings(content: bytes) -> list[str]:
        return [os.fsdecode(word) for word in content.split(b"\0")[:-1]]

    variables = [entry.partition("=") for entry in strings(asking.read_environment(environment))]
    maps = (Path(f"/proc/{first}/{kind}").read_text() for kind in ("uid_map", "gid_map"))
    status = (about / "status").read_text()
    request = Request(
        pid=peer.pid,
        argv=tuple(strings((about / "cmdline").read_bytes())),
        environment={name: value for name, _, value in variables},
        directory=os.readlink(about / "cwd"),  # noqa: PTH115 - not a path of ours
        identity=identity(status, *maps),
    )
    if not peer.is_described_by(status):
        raise LaunchError("whoever asked has ended, or is another by now")
    return request


def step_argv(call: SrunCall, task: Sequence[str], *, mpi: str | None, cpus: str | None) -> list[str]:
    """Slurm's own srun, for the ranks."""
    defaults = {"mpi": mpi, "cpus-per-task": cpus}
    given = [f"--{name}={value}" for name, value in defaults.items() if value and name not in call.names]
    return ["srun", "--overlap", *given, *call.argv(), "--", *task]


def companion_argv(others: Sequence[str], task: Sequence[str]) -> list[str]:
    """One process on each of the other hosts, beside all that runs there."""
    count = str(len(others))
    size = [f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", f"--nodelist={','.join(others)}"]
    alone = ["--overlap", "--cpus-per-task=1", "--mem=0", "--mpi=none", "--cpu-bind=none", "--gres=none"]
    return ["srun", *size, *alone, "--quiet", "--job-name=pinnace", f"--immediate={STEP_LIMIT}", "--", *task]


def default_mpi(listed: str) -> str | None:
    """Of what ``srun --mpi=list`` prints, what most libraries of MPI understand."""
    return next((name for name in PREFERRED if name in listed.split()), None)


class Companions:
    """The companions of some hosts, behind one pair of pipes. If they die, the next world starts them anew."""

    def __init__(self, argv: list[str], environment: Mapping[str, str], count: int, log: Path) -> None:
        self.argv, self.environment, self.count, self.log = argv, environment, count, log
        self.process: subprocess.Popen[bytes] | None = None
        self.answers: dict[str, queue.SimpleQueue[dict[str, Any]]] = {}
        self.lock = threading.Lock()

    def make(self, world: str, container: Container, who: Identity) -> dict[str, int]:
        """Have a world made on all of the hosts. Gives the process that holds it on each."""
        command = {"do": "make", "world": world, "container": container.to_json(), "identity": who.to_json()}
        heard: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with self.lock:
            self.answers[world] = heard
            self._start()
            self._tell(command)
        found: dict[str, int] = {}
        deadline = time.monotonic() + MAKE_LIMIT
        while len(found) < self.count:
            try:
                said = heard.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise LaunchError(f"after {MAKE_LIMIT:.0f} s the hosts are not ready for ranks") from None
            if "error" in said:
                raise LaunchError(f"{said.get('host', 'a host')} is not ready for ranks: {said['error']}")
            found[said["host"]] = said["pid"]
        return found

    def end(self, world: str) -> None:
        with self.lock:
            self.answers.pop(world, None)
            with contextlib.suppress(OSError, LaunchError):
                self._tell({"do": "end", "world": world})

    def close(self) -> None:
        if self.process and self.process.stdin:
            self.process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_LIMIT)

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

    def _tell(self, command: dict[str, Any]) -> None:
        if self.process and self.process.stdin:
            try:
                self.process.stdin.write(json.dumps(command).encode() + b"\n")
                self.process.stdin.flush()
            except BrokenPipeError:
                raise LaunchError(self._last_words()) from None

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        for line in process.stdout:
            with contextlib.suppress(ValueError, KeyError):  # not a companion's
                said = json.loads(line)
                self.answers[said["world"]].put(said)
        process.wait()
        for heard in list(self.answers.values()):
            heard.put({"error": self._last_words()})

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it has ended without a word"


class Server:
    """All launches of a node."""

    def __init__(self, node: NodeSpec, keeper: int) -> None:
        self.node = node
        self.first = first_process(keeper)
        self.environment = dict(os.environ)
        self.job = self.environment["SLURM_JOB_ID"]
        self.host = host_name(self.environment)
        self.numbers = itertools.count()
        self.containers: dict[str, Container] = {}  # by world
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
        """Let all companions remove what they have made."""
        for companions in filter(None, (self.here, self.there)):
            companions.close()

    def end(self) -> None:
        """From another thread: clean up on all hosts, and end this process."""
        signal.alarm(int(3 * END_LIMIT))  # whatever a thread of ours may hold
        self.close()
        os._exit(0)

    def serve(self, listener: socket.socket) -> None:
        """For ever. Slurm's signals are for others; what we start shall heed them."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        while True:
            try:
                line, _ = listener.accept()
            except OSError:  # too many files are open; those of launchers that say nothing are closed after a while
                time.sleep(ACCEPT_PAUSE)
                continue
            threading.Thread(target=self._attend, args=(line,), daemon=True).start()

    def _attend(self, line: socket.socket) -> None:
        """One launcher, from its question to its end."""
        with line:
            line.settimeout(HELLO_LIMIT)
            word, files, _, _ = socket.recv_fds(line, 1, 4)
            line.settimeout(None)
            if not word or len(files) < 4:
                for file in files:
                    os.close(file)
                return
            streams = files[:3]
            code = 1
            try:
                with contextlib.closing(asking.Peer.of(line)) as peer:
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

    def _launch(self, request: Request, container: Container, line: socket.socket, streams: list[int]) -> int:
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
                "environment": request.environment if call else BY_SRUN | request.environment,
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
        """A process in place of the launcher: with its streams, its signals, and its end."""
        process = subprocess.Popen(
            argv, stdin=streams[0], stdout=streams[1], stderr=streams[2], env=self.environment, start_new_session=True
        )
        threading.Thread(target=_pass_signals, args=(line, process), daemon=True).start()
        code = process.wait()
        return code if code >= 0 else 128 - code

    def _container(self, pid: int) -> Container:
        """The container whose root a process has."""
        device = os.stat(f"/proc/{pid}/root/").st_dev  # noqa: PTH116 - through the process's own eyes
        tasks = Path(f"/proc/{self.first}/root{containers.TASKS}")
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
        raise LaunchError("whoever asks is in no container of this node")

    def _make(self, world: str, container: Container, who: Identity, *, everywhere: bool) -> dict[str, int]:
        made = self.here.make(world, container, who)
        if not (everywhere and self.others):
            return made
        for volume in container.volumes:
            if volume.kind is containers.Kind.FIRST:
                raise LaunchError(f"the volume at {volume.target} is of a kind that other hosts cannot have")
        with self.lock:
            if self.there is None:
                self.there = self._companions_elsewhere()
        return made | self.there.make(world, container, who)

    def _companions_elsewhere(self) -> Companions:
        ports, address = self.node.cluster.ports, self.node_address()
        listener = listening.bind(address, listening.PortRange.parse(ports) if ports else None, BACKLOG)
        threading.Thread(target=self._give, args=(listener,), daemon=True).start()
        source = listener_name(self.node.index, *listener.getsockname()).decode()
        task = [*self.module, "--cluster", str(self.node.cluster.directory), "--from", source]
        environment = submission_environment(self.environment) | {"SLURM_JOB_ID": self.job}
        return Companions(companion_argv(self.others, task), environment, len(self.others), self.log)

    def node_address(self) -> str:
        record = NodeRecord.read(self.node.cluster.node_file(self.node.index))
        return record.address if record else ""

    def _give(self, listener: socket.socket) -> None:
        """Let companions copy from here, for ever. Each is asked for its proof first."""
        raise_file_limit()
        name = listener_name(self.node.index, *listener.getsockname())
        secret = self.node.cluster.link_key

        def admit(sock: socket.socket, _index: int) -> None:
            threading.Thread(target=self._give_part, args=(sock,), daemon=True).start()

        Acceptor(listener, lambda: handshake(secret, lambda _index: Protocol.COPY, name), admit).run()

    def _give_part(self, sock: socket.socket) -> None:
        """A part of a container, as an archive, to a companion that has proved to be ours."""
        with sock, contextlib.suppress(OSError, ValueError, KeyError, IndexError, StopIteration):
            sock.settimeout(HELLO_LIMIT)
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
                listed = subprocess.run(["srun", "--mpi=list"], capture_output=True, text=True, check=False, timeout=60)
                self._mpi = default_mpi(listed.stdout + listed.stderr) or "none"
            return self._mpi


def write_private(path: Path, data: object) -> None:
    """A file for the user's own eyes."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(data, file)


def _pass_signals(line: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """From the launcher; if that is gone, nobody waits for the process any more."""
    with contextlib.suppress(OSError, ValueError):
        while process.poll() is None:
            readable, _, _ = select.select([line], [], [], 1.0)
            if not readable:
                continue
            word = line.recv(1)
            if not word:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE)
                process.kill()
                return
            process.send_signal(word[0])


def _write(stream: int, text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(stream, text.encode())
