"""Environment variables: what Slurm says to jobs, what is a secret, and what Slurm's commands are given."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# What sbatch(1) and srun(1) document as output environment variables, but for addresses of srun itself.
_NAMES = """
    SLURMD_NODENAME SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_COUNT SLURM_ARRAY_TASK_ID SLURM_ARRAY_TASK_MAX
    SLURM_ARRAY_TASK_MIN SLURM_ARRAY_TASK_STEP SLURM_CLUSTER_NAME SLURM_CPUS_ON_NODE SLURM_CPUS_PER_GPU
    SLURM_CPUS_PER_TASK SLURM_CPU_BIND_LIST SLURM_CPU_BIND_TYPE SLURM_CPU_BIND_VERBOSE SLURM_CPU_FREQ_REQ
    SLURM_DISTRIBUTION SLURM_DIST_PLANESIZE SLURM_GPUS SLURM_GPUS_ON_NODE SLURM_GPUS_PER_NODE SLURM_GPUS_PER_SOCKET
    SLURM_GPUS_PER_TASK SLURM_GPU_BIND SLURM_GPU_FREQ SLURM_GTIDS SLURM_HET_SIZE SLURM_JOBID SLURM_JOB_ACCOUNT
    SLURM_JOB_CPUS_PER_NODE SLURM_JOB_DEPENDENCY SLURM_JOB_END_TIME SLURM_JOB_GID SLURM_JOB_GPUS SLURM_JOB_GROUP
    SLURM_JOB_ID SLURM_JOB_LICENSES SLURM_JOB_NAME SLURM_JOB_NODELIST SLURM_JOB_NODES SLURM_JOB_NUM_NODES
    SLURM_JOB_PARTITION SLURM_JOB_QOS SLURM_JOB_RESERVATION SLURM_JOB_START_TIME SLURM_JOB_UID SLURM_JOB_USER
    SLURM_LOCALID SLURM_MEM_BIND_LIST SLURM_MEM_BIND_PREFER SLURM_MEM_BIND_SORT SLURM_MEM_BIND_TYPE
    SLURM_MEM_BIND_VERBOSE SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE SLURM_NNODES SLURM_NODEID
    SLURM_NODELIST SLURM_NODE_ALIASES SLURM_NPROCS SLURM_NTASKS SLURM_NTASKS_PER_CORE SLURM_NTASKS_PER_GPU
    SLURM_NTASKS_PER_NODE SLURM_NTASKS_PER_SOCKET SLURM_OVERCOMMIT SLURM_PRIO_PROCESS SLURM_PROCID SLURM_PROFILE
    SLURM_RESTART_COUNT SLURM_SHARDS_ON_NODE SLURM_STEPID SLURM_STEP_GPUS SLURM_STEP_ID SLURM_STEP_NODELIST
    SLURM_STEP_NUM_NODES SLURM_STEP_NUM_TASKS SLURM_STEP_TASKS_PER_NODE SLURM_SUBMIT_DIR SLURM_SUBMIT_HOST
    SLURM_TASKS_PER_NODE SLURM_TASK_PID SLURM_THREADS_PER_CORE SLURM_TOPOLOGY_ADDR SLURM_TOPOLOGY_ADDR_PATTERN
    SLURM_TRES_PER_TASK SLURM_UMASK
"""
OF_JOBS = frozenset(_NAMES.split())
# The user's defaults for these commands would hide rows from us, or let scancel ask before it does anything.
OF_QUERIES = ("SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_", "SINFO_")
# Slurm's commands print local times: let these be unambiguous.
IN_UTC = {"TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}
# What of a service's environment sbatch needs, and every job gets. All else is the service's own.
OF_SITE = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TZ|LANG|LC_[A-Z]+|LD_LIBRARY_PATH|MANPATH|BASH_ENV|MODULE\w*|LMOD_\w*|__LMOD\w*"
    r"|SLURM_CONF|SBATCH_\w+"
)
SECRETS = {"JWT", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS", "COOKIE"}


def is_secret(name: str) -> bool:
    """Whether a variable is named like a secret: SLURM_JWT lets whoever has it submit jobs as the user."""
    return not SECRETS.isdisjoint(name.upper().split("_"))


def submission_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Our environment without the enclosing job's ``SLURM_*``, which sbatch and srun would take for our wishes.

    ``SLURM_CONF`` says where Slurm is, and ``SBATCH_*`` and the like are the user's own defaults: they stay.
    """
    return {
        name: value
        for name, value in environment.items()
        if name == "SLURM_CONF" or not name.startswith(("SLURM_", "SLURMD_", "PMI", "PMIX"))
    }


def site_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """For jobs that a service submits for others: without what is the service's own."""
    kept = submission_environment(environment)
    return {name: value for name, value in kept.items() if OF_SITE.fullmatch(name)}


def query_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """For commands whose output we read: without the user's defaults for them. A token may be the way in."""
    known = submission_environment(environment)
    token = {"SLURM_JWT": environment["SLURM_JWT"]} if "SLURM_JWT" in environment else {}
    return {name: value for name, value in known.items() if not name.startswith(OF_QUERIES)} | token | IN_UTC
