"""sbatch's options as slurmrestd takes them: what it calls them, in its units."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from pinnace.errors import UsageError
from pinnace.slurm.sizes import parse_mebibytes
from pinnace.slurm.times import parse_limit
from pinnace.validation import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pinnace.slurm.options import SbatchOptions

VERSIONS = tuple(f"v0.0.{number}" for number in range(36, 45))  # of slurmrestd's interface, that are known here
LISTED = "v0.0.39"  # the first in which the environment is a list
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin"}  # slurmrestd refuses a job that has none


def _range(value: str) -> int | list[int]:
    return [int(count) for count in value.split("-", maxsplit=1)] if "-" in value else int(value)


def _timestamp(value: str) -> int:
    return int(dt.datetime.fromisoformat(value).timestamp())


PROPERTIES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "job-name": ("name", str),
    "partition": ("partition", str),
    "account": ("account", str),
    "qos": ("qos", str),
    "nodes": ("nodes", _range),
    "ntasks": ("tasks", int),
    "ntasks-per-node": ("tasks_per_node", int),
    "cpus-per-task": ("cpus_per_task", int),
    "mem": ("memory_per_node", parse_mebibytes),
    "mem-per-cpu": ("memory_per_cpu", parse_mebibytes),
    "time": ("time_limit", parse_limit),
    "gres": ("gres", str),
    "gpus": ("gpus", str),
    "constraint": ("constraints", str),
    "exclusive": ("exclusive", lambda value: value or "exclusive"),
    "reservation": ("reservation", str),
    "licenses": ("licenses", str),
    "array": ("array", str),
    "begin": ("begin_time", _timestamp),
    "deadline": ("deadline", str),
    "dependency": ("dependency", str),
    "kill-on-invalid-dep": ("kill_on_invalid_dependency", lambda value: value == "yes"),
    "nice": ("nice", int),
    "signal": ("signal", str),
    "output": ("standard_output", str),
    "error": ("standard_error", str),
    "input": ("standard_input", str),
    "open-mode": ("open_mode", str),
    "mail-type": ("mail_type", str),
    "mail-user": ("mail_user", str),
    "comment": ("comment", str),
    "wckey": ("wckey", str),
    "chdir": ("current_working_directory", str),
    "requeue": ("requeue", lambda _: True),
    "hold": ("hold", lambda _: True),
}


def job_properties(options: SbatchOptions) -> dict[str, Any]:
    """The options under slurmrestd's names."""
    given: dict[str, Any] = {}
    for option, value in options.items():
        if option not in PROPERTIES:
            raise UsageError(f"slurmrestd has nothing like --{option}", hint="Use Slurm's command line for this job.")
        name, convert = PROPERTIES[option]
        try:
            given[name] = convert(value or "")
        except (ValueError, OverflowError) as error:
            message = f"--{option}={printable(value or '', 80)}: {error or 'not understood'}"
            raise UsageError(message) from error
    return given


def properties(options: SbatchOptions, environment: Mapping[str, str], version: str) -> dict[str, Any]:
    """The ``job`` of a submission, as a version of the interface has it."""
    given = job_properties(options)
    variables = ENVIRONMENT | dict(environment)
    given["environment"] = variables
    if version in VERSIONS[VERSIONS.index(LISTED) :]:
        given["environment"] = [f"{name}={value}" for name, value in variables.items()]
        for name in ("time_limit", "memory_per_node", "memory_per_cpu"):
            if name in given:
                given[name] = {"set": True, "number": given[name]}
        if "nodes" in given:
            given["nodes"] = options["nodes"]
    return given
