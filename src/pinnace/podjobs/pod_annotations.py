"""The words by which users say what they want of Slurm: ours, and those of the systems before us, as they are."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from pinnace.errors import UsageError
from pinnace.slurm.allowed_options import check_pod_values, pod_options
from pinnace.slurm.options import merge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pinnace.slurm.options import SbatchOptions

DOMAIN = "pinnace.dev"
FLAGS = (
    "slurm-job.vk.io/flags",  # interLink
    "slurm-job.knoc.io/flags",
    "slurm-job.hpk.io/flags",  # as HPK's paper has it
    "slurm.hpk.io/flags",
    f"{DOMAIN}/flags",
)
MPI_FLAGS = tuple(name.replace("/flags", "/mpi-flags") for name in FLAGS)
SLINKY = "slurmjob.slinky.slurm.net/"
_SLINKY = {
    "account": "account",
    "constraints": "constraint",
    "cpu-per-task": "cpus-per-task",
    "gres": "gres",
    "job-name": "job-name",
    "licenses": "licenses",
    "mem-per-node": "mem",
    "partition": "partition",
    "qos": "qos",
    "reservation": "reservation",
    "timelimit": "time",
    "wckey": "wckey",
}
_OF_SLINKY_ITSELF = {"group-id", "user-id", "shared", "tasks-per-node", "external-node", "jobid", "placeholder"}


def options(annotations: Mapping[str, str], *, also: frozenset[str] = frozenset()) -> SbatchOptions:
    """What an object's annotations ask of sbatch. Our own word counts most."""
    found = check_pod_values(_slinky(annotations))
    for name in FLAGS:
        if name in annotations:
            try:
                found = merge(found, pod_options(annotations[name], also=also))
            except UsageError as error:
                raise UsageError(f"annotation {name}: {error.message}") from error
    return found


def mpi_flags(annotations: Mapping[str, str]) -> str | None:
    """The flags of the mpiexec that is to start a pod's containers; None if none is.

    As in KNoC and interLink, where any value puts `mpiexec -np $SLURM_NTASKS` and the flags before the command, but for
    `true`, which does nothing.
    """
    given = next((annotations[name] for name in reversed(MPI_FLAGS) if name in annotations), None)
    if given is None or given == "true":
        return None
    try:
        shlex.split(given)
    except ValueError as error:
        raise UsageError(f"the mpi-flags {given!r} cannot be read: {error}") from error
    return given


def _slinky(annotations: Mapping[str, str]) -> SbatchOptions:
    given = {name.removeprefix(SLINKY): value for name, value in annotations.items() if name.startswith(SLINKY)}
    found: SbatchOptions = {}
    for name, value in given.items():
        if name in _SLINKY:
            found[_SLINKY[name]] = value
        elif name not in {"min-nodes", "max-nodes", *_OF_SLINKY_ITSELF}:
            raise UsageError(f"annotation {SLINKY}{name} is not known to pinnace")
    least, most = given.get("min-nodes"), given.get("max-nodes")
    if least or most:
        found["nodes"] = f"{least or 1}-{most}" if most else str(least)
    return found
