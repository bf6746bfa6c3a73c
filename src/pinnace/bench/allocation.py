"""Hosts that a job of ours holds, and commands on them: bare Slurm's side of every measurement."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Self

from pinnace.errors import BenchError, NoSpaceError
from pinnace.node.forking import SLURM_SIGNALS
from pinnace.sandbox.linux import die_with_parent
from pinnace.slurm.commands import REFUSED
from pinnace.slurm.options import argv as options_argv
from pinnace.slurm.variables import srun_environment
from pinnace.validation import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pinnace.slurm.options import SbatchOptions

HOLD = 'echo "$SLURM_JOB_ID $SLURM_NODEID $SLURMD_NODENAME $SLURM_CPUS_ON_NODE"; exec sleep infinity'
PLAIN = ("--mpi=none", "--cpu-bind=none", "--input=none")
END_LIMIT = 30.0  # seconds that srun has to end
SHOWN = 300  # characters of an error
KLOG = re.compile(r"^[EWI]\d{4} [\d:.]+ +\d+ \S+\] ")  # what kubectl writes before its messages
# Runs a command in a new directory below $1, or in the host's scratch directory. $2 names the run, of which an earlier
# command may have been killed.
IN_DIRECTORY = """
base=${1:-${PINNACE_SCRATCH:-${SLURM_TMPDIR:-${TMPDIR:-/tmp}}}} name=pinnace-bench-$2
rm -rf "$base/$name".*
directory=$(mktemp -d "$base/$name.XXXXXX") || exit 1
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' TERM INT HUP
shift 2
cd "$directory" && "$@"
"""


def in_directory(base: str, identifier: str, argv: Sequence[str]) -> list[str]:
    """A command in a directory of its own, which is removed afterwards."""
    return ["sh", "-c", IN_DIRECTORY, "sh", base, identifier, *argv]


def step_argv(job: int, host: str, argv: Sequence[str], *, cpus: int, directory: Path | str) -> list[str]:
    """A command as a step of a job that runs, beside all other steps, with all CPUs that the job has on the host."""
    return [
        "srun",
        f"--jobid={job}",
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={cpus}",
        f"--nodelist={host}",
        *PLAIN,
        f"--chdir={directory}",
        *argv,
    ]


def execute(argv: Sequence[str], *, limit: float, stdin: str = "") -> str:
    """Run a command to its end and give what it printed. Ctrl-C is ours to handle, not the command's.

    On Ctrl-C or after ``limit`` it is ended in order: an srun that was killed would leave its job in the queue.
    """
    source = subprocess.PIPE if stdin else subprocess.DEVNULL
    try:
        process = start(argv, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except FileNotFoundError as error:
        raise BenchError(f"there is no `{argv[0]}` here", hint="Run `pinnace bench` on a login node.") from error
    try:
        output, errors = process.communicate(stdin, timeout=limit)
    except subprocess.TimeoutExpired:
        raise BenchError(
            f"no result within {limit:.0f} s", hint="Does the host still answer? See `sinfo -N`."
        ) from None
    finally:
        end(process)
    if process.returncode:
        raise failure(process.returncode, f"{errors}\n{output}")
    return output


def failure(code: int, output: str) -> BenchError | NoSpaceError:
    """What a failed command said, in a line."""
    lines = [KLOG.sub("", line.strip()) for line in output.splitlines() if line.strip()]
    if any("No space left on device" in line or "Disk quota exceeded" in line for line in lines):
        return NoSpaceError(
            "the file system is too small for the file of fio",
            hint="Let it be smaller with --fio-size, or elsewhere with --directory.",
        )
    return BenchError(f"exit code {code}: {printable(' / '.join(lines[-4:]) or 'nothing was printed', SHOWN)}")


@dataclass(frozen=True, kw_only=True)
class AllocatedHost:
    """A host of a job, by the name that Slurm has for it."""

    name: str
    cpus: int


class HostAllocation:
    """A job that only holds its hosts, for as long as this process lives."""

    def __init__(self, options: SbatchOptions, nodes: int, *, limit: float) -> None:
        self._argv = [
            "srun",
            "--job-name=pinnace-bench",
            *options_argv(options),
            f"--nodes={nodes}",
            "--ntasks-per-node=1",
            "--unbuffered",
            *PLAIN,
            "sh",
            "-c",
            HOLD,
        ]
        self._nodes = nodes
        self._limit = limit
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None
        self.job = 0
        self.hosts: tuple[AllocatedHost, ...] = ()

    def __enter__(self) -> Self:
        self._errors = tempfile.TemporaryFile("w+")
        try:
            self._process = start(self._argv, stdout=subprocess.PIPE, stderr=self._errors)
            self._read_hosts()
        except FileNotFoundError as error:
            self.close()
            raise BenchError("there is no `srun` here", hint="Run `pinnace bench` on a login node.") from error
        except BaseException:
            self.close()
            raise
        return self

    def _read_hosts(self) -> None:
        """Every host prints a line as soon as it is ours."""
        deadline, printed = time.monotonic() + self._limit, b""
        stdout = self._process.stdout.fileno() if self._process and self._process.stdout else -1
        while printed.count(b"\n") < self._nodes:
            if not select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise BenchError(
                    f"Slurm gave no hosts within {self._limit:.0f} s",
                    hint="Wait longer with --wait-limit; see `squeue --me --start`.",
                )
            if not (more := os.read(stdout, 1 << 16)):
                raise BenchError(f"Slurm gave no hosts: {self._said() or 'srun ended'}", hint=REFUSED)
            printed += more
        rows = sorted(line.split() for line in printed.decode().splitlines())
        self.job = int(rows[0][0])
        found = {int(index): AllocatedHost(name=name, cpus=int(cpus)) for _, index, name, cpus in rows}
        self.hosts = tuple(found[index] for index in sorted(found))

    def _said(self) -> str:
        if self._process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
        if not self._errors:
            return ""
        self._errors.seek(0)
        return printable(self._errors.read().replace("\n", " ").strip(), SHOWN)

    def check(self) -> None:
        """Raise if the job has ended."""
        if self._process is None or self._process.poll() is not None:
            raise BenchError(f"the job has ended: {self._said() or 'Slurm did not say why'}")

    def close(self) -> None:
        """End the job, and wait until it has ended."""
        if self._process:
            end(self._process)
            self._process = None
        if self._errors:
            self._errors.close()
            self._errors = None

    def __exit__(self, *_: object) -> None:
        self.close()


def start(
    argv: Sequence[str],
    *,
    stdout: int,
    stderr: int | IO[str] | IO[bytes],
    stdin: int = subprocess.DEVNULL,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start a process, such as one of Slurm's, which ends with this one. Ctrl-C is ours to handle.

    ``environment`` is added to what Slurm's commands get of ours.
    """
    return subprocess.Popen(
        argv,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        text=True,
        errors="replace",
        env=srun_environment(os.environ) | dict(environment or {}),
        start_new_session=True,
        preexec_fn=_prepare_child,  # noqa: PLW1509 - there are no threads
    )


def end(process: subprocess.Popen[str]) -> None:
    """End such a process in order, if it has not ended yet."""
    process.terminate()
    try:
        process.wait(END_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream:
            stream.close()


@contextlib.contextmanager
def running(argv: Sequence[str]) -> Iterator[None]:
    """A server, for as long as the context lasts; it ends with this process in any case."""
    process = start(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        end(process)


def _prepare_child() -> None:
    die_with_parent(signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SLURM_SIGNALS)
