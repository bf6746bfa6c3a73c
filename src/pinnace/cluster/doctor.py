"""Whether this site and this account are ready for clusters: here, and on compute nodes by way of a small job."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace import ownership
from pinnace.cluster import launching, reaching
from pinnace.cluster.directory import seed_directory, unsafe_seed
from pinnace.cluster.site_page import ClassFindings
from pinnace.components.manifest import architecture, required
from pinnace.components.store import ComponentState, ComponentStores, user_root
from pinnace.errors import SlurmError, UnsafePathError
from pinnace.interpreter import python_argv
from pinnace.node import checks
from pinnace.node.checks import Check, CheckState
from pinnace.sandbox import scratch
from pinnace.slurm.commands import Slurm
from pinnace.slurm.variables import srun_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

CHECK_MEMORY = "500M"  # of the job
CHECK_MINUTES = 5  # its time limit


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A check, and the host that it is about."""

    host: str
    check: Check


def examine(options: Sequence[str], *, on_nodes: bool, limit: float) -> Iterator[Finding]:
    """All checks, one after another: of this machine, or of the nodes that Slurm gives for these options."""
    here = os.uname().nodename
    home = user_root().parent
    with contextlib.suppress(OSError):
        ownership.make_directories(home)
    answer = slurm()
    own = [components(), *checks.home(home), *safety(home), answer]
    own += [ranks()] if answer.state is CheckState.OK else []
    yield from (Finding(host=here, check=check) for check in own)
    if not on_nodes:
        yield from (Finding(host=here, check=check) for check in checks.host_checks(scratch.base(os.environ)))
    elif not any(check.state is CheckState.FAILED for check in own):
        yield from _check_nodes(options, home, limit)


def examine_partition(partition: str, *, limit: float, report: Callable[[str], None]) -> Iterator[ClassFindings]:
    """The checks on one node of each kind that a partition has. ``report`` gets a line for each."""
    classes = Slurm().node_classes(partition)
    if not classes:
        raise SlurmError(f"the partition {partition!r} has no nodes, or does not exist", hint="`sinfo` shows them all.")
    home = user_root().parent
    with contextlib.suppress(OSError):
        ownership.make_directories(home)
    for kind in classes:
        asked = kind.usable[0] if kind.usable else ""
        report(f"{kind.names}: {f'asking {asked}' if asked else 'none is up'}")
        options = [f"--partition={partition}", f"--nodelist={asked}", "--nodes=1"]
        found = tuple(_check_nodes(options, home, limit)) if asked else ()
        yield ClassFindings(nodes=kind, asked=asked, findings=found)


def components() -> Check:
    """The upstream binaries, as a cluster would find them."""
    stores = ComponentStores.default(architecture())
    entries = [stores.inspect(component) for component in required()]
    missing = [entry.component.name for entry in entries if entry.state is not ComponentState.INSTALLED]
    if missing:
        return checks.failed(
            "components", f"missing or damaged: {', '.join(missing)}", "Get them with `pinnace fetch`."
        )
    if not seed_directory() and (why := unsafe_seed()):
        hint = "Remove it, and make another with `pinnace fetch`."
        return checks.warning("components", f"the seed is not used, because {why}: clusters start seconds later", hint)
    if not seed_directory():
        return checks.warning("components", "no seed: clusters start seconds later", "Make it with `pinnace fetch`.")
    return checks.ok("components", f"all {len(entries)} are there")


def safety(home: Path) -> Iterator[Check]:
    """Whether others could change what runs as the user: the data of pinnace, and pinnace itself."""
    try:
        ownership.require(home, "the directory of pinnace", "set PINNACE_HOME to another directory")
    except UnsafePathError as error:
        yield checks.failed("safety", error.message, error.hint)
    for place in (Path(sys.executable), Path(__file__)):
        if found := ownership.problem(place):
            yield checks.warning(
                "safety", f"{found}, and it is part of pinnace", "Install pinnace where you alone can."
            )


def slurm() -> Check:
    """Whether Slurm answers here; without it there is ``--local``."""
    try:
        Slurm().squeue(certain=False)
        version = Slurm().version()
    except SlurmError as error:
        return checks.failed("slurm", error.message, error.hint or "Is this a login node? Does `sinfo` answer?")
    return checks.ok("slurm", f"{version} answers")


def ranks() -> Check:
    """By what the ranks of pods over several hosts find each other. Not every Slurm was built with PMIx."""
    try:
        known = [name for name in Slurm().mpi_plugins() if name in {"pmix", "pmi2"}]
    except SlurmError as error:
        return checks.warning("ranks", error.message, error.hint)
    if "pmix" in known:
        return checks.ok("ranks", "srun has PMIx: programs of every MPI find each other")
    has = "PMI-2, for programs of MPICH and Intel MPI" if known else "neither PMIx nor PMI-2"
    return checks.warning("ranks", f"srun has {has}", "In pods, start programs of Open MPI with mpirun.")


def _check_nodes(options: Sequence[str], home: Path, limit: float) -> Iterator[Finding]:
    """Run the checks in a job; every node prints lines, and last its time, which is compared with ours at once."""
    token = f".seen-{os.uname().nodename}-{secrets.token_hex(4)}"
    (home / token).touch()
    try:
        with tempfile.TemporaryFile("w+") as errors:
            inside = "SLURM_JOB_ID" in os.environ
            process = subprocess.Popen(
                step_argv(options, home, token, inside=inside),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=dict(os.environ) if inside else srun_environment(os.environ),
            )
            timer = threading.Timer(limit, process.terminate)
            timer.start()
            reports = 0
            found: dict[str, list[Check]] = {}  # by host
            try:
                for line in process.stdout or ():
                    about = json.loads(line)
                    host, own = about["host"], found.setdefault(about["host"], [])
                    if listening := about.get("listening"):
                        own.append(login_access(*listening))
                        continue
                    if check := about.get("check"):
                        own.append(Check(**check | {"state": CheckState(check["state"])}))
                        continue
                    reports += 1
                    clock = checks.compared_clock(about["time"] - time.time())
                    yield from (Finding(host=host, check=check) for check in (clock, *own))
            finally:
                in_time = timer.is_alive()
                timer.cancel()
                process.terminate()
                process.wait()
                if process.stdout:
                    process.stdout.close()
            errors.seek(0)
            message = errors.read().strip()
            if process.returncode or not reports:
                reason = message if in_time else f"no answer within {limit:.0f} s\n{message}"
                yield Finding(host="nodes", check=_no_answer(reason or "no answer"))
    finally:
        (home / token).unlink(missing_ok=True)


def login_access(address: str, port: int) -> Check:
    """Whether this host reaches a node at which one listens."""
    name, here = "login access", os.uname().nodename
    if reaching.can_connect(f"https://{address}:{port}"):
        return checks.ok(name, f"{here} reaches {address}")
    said = f"{here} does not reach the node's ports: kubectl there goes through a step of the job"
    return checks.warning(name, said, "It works without; ports that are open from login nodes too are faster.")


def _no_answer(reason: str) -> Check:
    hint = "Are the options right, and are this Python and pinnace on the compute nodes too, at the same place?"
    return checks.failed("srun", reason, f"{hint} ({sys.executable})")


def step_argv(options: Sequence[str], home: Path, token: str, *, inside: bool) -> list[str]:
    """The checks on every node of a small job, or of the allocation that we are in."""
    if inside:
        options = launching.inside_options(os.environ)
    else:
        options = launching.with_memory(options, os.environ, CHECK_MEMORY)
        if not any(option.startswith("--time") for option in options):
            options.append(f"--time={CHECK_MINUTES}")
        options.append("--job-name=pinnace-doctor")
    return [
        "srun",
        *options,
        "--ntasks-per-node=1",
        "--kill-on-bad-exit=0",
        "--mpi=none",
        "--cpu-bind=none",
        "--input=none",
        f"--chdir={home}",
        *python_argv("pinnace.node.checks", "--home", str(home), "--token", token),
    ]
