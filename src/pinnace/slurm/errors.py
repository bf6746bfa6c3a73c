"""What it means that a command of Slurm's, or slurmrestd, has failed: in Slurm's own words, its only interface.

While Slurm cannot be reached, nothing is submitted for anybody. So sbatch is believed only what it says itself: other
lines repeat what was asked for, which may be words such as these.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pinnace.errors import SlurmError, SlurmNotFoundError, SlurmSubmitLimitError, SlurmUnreachableError

if TYPE_CHECKING:
    from collections.abc import Sequence

# slurmctld or slurmdbd does not answer, only too late, or not just now.
TRANSIENT = (
    "unable to contact",
    "timed out",
    "zero bytes",
    "connection",  # refused, reset, a failure of it
    "communication",
    "no route to host",
    "host is down",
    "network is unreachable",
    "transport endpoint",
    "temporarily",
    "try again",
    "did not answer",
    "slurmctld is",
    "unexpected message received",
    "insane message length",
    "backup mode",
    "in standby",
    "controller is not available",
    "controller not responding",
    "database",
    "protocol auth",  # munge, or what slurmrestd says of a token that slurmctld refuses
)
UNSPECIFIED = "unspecified error"  # if it is all that Slurm says: nothing that anybody asked for
NOT_FOUND = ("invalid job id", "already complet")
SUBMIT_LIMIT = ("submitjob", "job submit limit", "submit limit", "maxsubmit", "too many jobs", "max job", "maxjob")
_PREFIX = re.compile(r"^(sbatch: )*(error: )?")
_LIMIT = re.compile(r"(assoc|qos|max)\w+")  # such as AssocMaxSubmitJobLimit, QOSMaxGRESPerJob
_VERDICT = "batch job submission failed: "
_OF_SLURM_ALONE = ("slurm temporarily unable", "unable to contact slurm controller")  # lines that begin so


def is_transient(text: str) -> bool:
    """Whether what Slurm says of itself may pass."""
    return _mentions(text, TRANSIENT)


def is_unspecified(text: str) -> bool:
    return text.strip().lower() == UNSPECIFIED


def is_not_found(text: str) -> bool:
    """Whether Slurm has no such job, or none that has not ended."""
    return _mentions(text, NOT_FOUND)


def _mentions(text: str, table: Sequence[str]) -> bool:
    return any(words in text.lower() for words in table)


def command_error(argv: Sequence[str], returncode: int, *, stdout: str = "", stderr: str = "") -> SlurmError:
    """The error of a command that has failed."""
    kind = _kind_of_submission(stderr) if argv[0] == "sbatch" else _kind(stderr)
    message = f"{argv[0]}: {stderr.strip() or f'exit code {returncode}'}"
    return kind(message, argv=argv, returncode=returncode, stdout=stdout, stderr=stderr)


def _kind(stderr: str) -> type[SlurmError]:
    if is_transient(stderr):
        return SlurmUnreachableError
    return SlurmNotFoundError if is_not_found(stderr) else SlurmError


def _kind_of_submission(stderr: str) -> type[SlurmError]:
    limits, verdict = own_words(stderr)
    if _mentions(limits or verdict, SUBMIT_LIMIT):  # the verdict is one for all limits
        return SlurmSubmitLimitError
    return SlurmUnreachableError if is_transient(verdict) or is_unspecified(verdict) else SlurmError


def own_words(text: str) -> tuple[str, str]:
    """What Slurm itself says of a submission: the limits that it names, and its verdict, in small letters."""
    lines = [_PREFIX.sub("", line).strip().lower() for line in text.split("\n")]
    limits = [line for line in lines if _LIMIT.fullmatch(line)]
    verdicts = [line.partition(_VERDICT)[2] for line in lines if line.startswith(_VERDICT)]
    return " ".join(limits), " ".join([*verdicts, *(line for line in lines if line.startswith(_OF_SLURM_ALONE))])
