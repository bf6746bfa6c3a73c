"""sbatch's options as slurmrestd takes them: what each version of its interface calls them, in its units."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Any

from pinnace.errors import UsageError
from pinnace.slurm.sizes import parse_mebibytes
from pinnace.slurm.times import parse_limit
from pinnace.validation import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pinnace.slurm.options import SbatchOptions

VERSIONS = tuple(f"v0.0.{number}" for number in range(36, 46))  # of slurmrestd's interface, that are known here
PARSED = "v0.0.39"  # the first with lists in place of words, and numbers that say whether they are set
SCRIPT_OF_JOB = "v0.0.41"  # the first in which the script beside the job is deprecated
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin"}  # slurmrestd refuses a job that has none
EXCLUSIVE = {"": "none", "exclusive": "none"}  # what others may use of a job's nodes; other words are the same
MAIL_OF_ALL = ("BEGIN", "END", "FAIL", "REQUEUE", "INVALID_DEPENDENCY", "STAGE_OUT")
SIGNAL = re.compile(r"(?:(?P<flags>[RB]+):)?(?P<signal>\w+)(?:@(?P<delay>\d+))?")


def _range(value: str) -> int | list[int]:
    return [int(count) for count in value.split("-", maxsplit=1)] if "-" in value else int(value)


def _timestamp(value: str) -> int:
    return int(dt.datetime.fromisoformat(value).timestamp())


def _number(value: int) -> dict[str, Any]:
    return {"set": True, "number": value}


def _tres(value: str) -> str:
    """Generic resources as trackable ones: ``gpu:tesla:2,fpga`` is ``gres/gpu:tesla:2,gres/fpga``."""
    return ",".join(f"gres/{word.removeprefix('gres/').removeprefix('gres:')}" for word in value.split(","))


def _mail(value: str) -> list[str]:
    words = [word for word in value.upper().split(",") if word != "NONE"]
    limits = {"TIME_LIMIT": "TIME=100%", "INVALID_DEPEND": "INVALID_DEPENDENCY"}
    limits |= {f"TIME_LIMIT_{share}": f"TIME={share}%" for share in (90, 80, 50)}
    return [name for word in words for name in (MAIL_OF_ALL if word == "ALL" else (limits.get(word, word),))]


def _signal(value: str) -> dict[str, Any]:
    """``B:USR1@60``: which signal, to whom, how many seconds before the end."""
    found = SIGNAL.fullmatch(value)
    if not found:
        raise ValueError(f"{printable(repr(value), 40)} is no signal")
    flags = [
        name for letter, name in (("B", "BATCH_JOB"), ("R", "RESERVATION_JOB")) if letter in (found["flags"] or "")
    ]
    delay = _number(int(found["delay"])) if found["delay"] else None
    given = {"kill_warning_signal": found["signal"], "kill_warning_delay": delay, "kill_warning_flags": flags}
    return {name: part for name, part in given.items() if part}


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


# What is called or written differently since numbers say whether they are set.
SINCE_PARSED: dict[str, tuple[str, Callable[[str], Any]]] = {
    "nodes": ("nodes", str),
    "mem": ("memory_per_node", lambda value: _number(parse_mebibytes(value))),
    "mem-per-cpu": ("memory_per_cpu", lambda value: _number(parse_mebibytes(value))),
    "time": ("time_limit", lambda value: _number(parse_limit(value))),
    "gres": ("tres_per_node", _tres),
    "gpus": ("tres_per_job", lambda value: _tres(f"gpu:{value}")),
    "exclusive": ("shared", lambda value: [EXCLUSIVE.get(value, value)]),
    "begin": ("begin_time", lambda value: _number(_timestamp(value))),
    "deadline": ("deadline", _timestamp),
    "kill-on-invalid-dep": ("flags", lambda value: [f"{'' if value == 'yes' else 'NO_'}KILL_INVALID_DEPENDENCY"]),
    "signal": ("", _signal),
    "open-mode": ("open_mode", lambda value: [value.upper()]),
    "mail-type": ("mail_type", _mail),
}


def is_since(version: str, first: str) -> bool:
    return VERSIONS.index(version) >= VERSIONS.index(first)


def job_properties(options: SbatchOptions, version: str) -> dict[str, Any]:
    """The options under the names of a version of slurmrestd's interface."""
    table = PROPERTIES | (SINCE_PARSED if is_since(version, PARSED) else {})
    given: dict[str, Any] = {}
    for option, value in options.items():
        if option not in table:
            raise UsageError(f"slurmrestd has nothing like --{option}", hint="Use Slurm's command line for this job.")
        name, convert = table[option]
        try:
            converted = convert(value or "")
        except (ValueError, OverflowError) as error:
            message = f"--{option}={printable(value or '', 80)}: {error or 'not understood'}"
            raise UsageError(message) from error
        given |= {name: converted} if name else converted
    return given


def submission(script: str, options: SbatchOptions, environment: Mapping[str, str], version: str) -> dict[str, Any]:
    """The body of a submission, as a version of the interface has it."""
    job, variables = job_properties(options, version), ENVIRONMENT | dict(environment)
    job["environment"] = variables
    if is_since(version, PARSED):
        job["environment"] = [f"{name}={value}" for name, value in variables.items()]
    return {"job": job | {"script": script}} if is_since(version, SCRIPT_OF_JOB) else {"job": job, "script": script}
