"""How agents get onto nodes: commands and scripts, from pure functions."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from pinnace.slurm.scripts import batch_script
from pinnace.spec import agent_argv
from pinnace.timeline.recorder import batch_mark

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MEMORY = "3G"  # per node: the control plane takes about one, and sites often give little by default
NO_MEMORY = "none"  # in place of a size, where the site gives whole nodes
MEMORY_OPTIONS = ("--mem", "--mem-per-cpu", "--mem-per-gpu", "--exclusive")


def with_memory(options: Sequence[str], environment: Mapping[str, str], memory: str = "") -> list[str]:
    """The user's options, and a size of memory unless the user has asked for one, or for whole nodes.

    PINNACE_MEMORY is another size than ours, or says that the site wants none.
    """
    usual = environment.get("PINNACE_MEMORY") or MEMORY
    memory = NO_MEMORY if usual == NO_MEMORY else memory or usual
    asked = any(option.split("=")[0] in MEMORY_OPTIONS for option in options)
    asked |= any(name.startswith(("SBATCH_MEM", "SLURM_MEM", "SBATCH_EXCLUSIVE")) for name in environment)
    return list(options) if asked or memory == NO_MEMORY else [*options, f"--mem={memory}"]


def with_nodes(options: Sequence[str], nodes: int) -> list[str]:
    """The user's options, and a number of nodes unless they have one."""
    asked = any(option.startswith(("--nodes", "-N")) for option in options)
    return list(options) if asked or nodes == 1 else [f"--nodes={nodes}", *options]


def job_comment(name: str) -> str:
    """The comment of the job that runs a cluster. By it alone a job is known as a cluster's, and may be cancelled."""
    return f"pinnace:{name}"


def step_argv(directory: Path, options: Sequence[str]) -> list[str]:
    """One agent on every node. srun carries signals to all of them, and ends when they have ended."""
    log = directory / "logs" / "agent-%t.log"
    return [
        "srun",
        *options,
        "--ntasks-per-node=1",
        "--kill-on-bad-exit=0",
        "--no-kill",  # a host that fails takes its node along, not the cluster
        "--mpi=none",
        "--cpu-bind=none",
        "--input=none",
        f"--chdir={directory}",  # ours alone; the user's may not be there, and srun would go to /tmp instead
        f"--output={log}",
        *agent_argv(directory),
    ]


def inside_options(environment: Mapping[str, str]) -> list[str]:
    """For a step that takes the whole of the allocation that we are in, and leaves room for other steps."""
    return [
        f"--nodes={environment['SLURM_JOB_NUM_NODES']}",
        f"--ntasks={environment['SLURM_JOB_NUM_NODES']}",
        "--overlap",
        "--unbuffered",
    ]


def cluster_script(name: str, directory: Path, options: Sequence[str]) -> tuple[str, list[str]]:
    """The batch script of a cluster that outlives our terminal, and the options that sbatch gets."""
    directives = [
        f"--job-name=pinnace-{name}",
        f"--chdir={directory}",
        f"--output={directory / 'logs' / 'job.log'}",
        "--no-kill",
        "--ntasks-per-node=1",
    ]
    step = step_argv(directory, ["--nodes=$SLURM_JOB_NUM_NODES", "--ntasks=$SLURM_JOB_NUM_NODES", "--overlap"])
    # The shell must fill in Slurm's own number, and nothing else.
    command = " ".join(word if "$SLURM" in word else shlex.quote(word) for word in step)
    # A shell that is told to end asks the cluster to end in order, and waits for that.
    lines = [
        batch_mark(),
        f"trap {shlex.quote(shlex.join(agent_argv(directory, '--stop')))} TERM",
        f"{command} &",
        "while kill -0 $! 2>/dev/null; do wait; done",
    ]
    return batch_script(directives, "\n".join(lines)), [*options, f"--comment={job_comment(name)}"]
