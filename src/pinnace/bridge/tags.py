"""The words by which the bridge finds its jobs again: in a job's comment, and in the line that submitted it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinnace.slurm.jobs import AccountedJob
    from pinnace.slurm.options import SbatchOptions

MARK = "pinnace-bridge:"
TAG = re.compile(re.escape(MARK) + r"[0-9A-Za-z-]{1,64}/[0-9]{1,6}(?![^\s'\"])")
# How a job of ours is submitted, as accounting keeps it (some versions quote what has spaces in it).
SUBMITTED = re.compile(rf"(?:\S*/)?sbatch --parsable ['\"]?--comment=['\"]?({TAG.pattern})")


def tag(uid: str, attempt: int) -> str:
    """The word in a job's comment by which it is found again: of which object it is, and of which try."""
    return f"{MARK}{uid}/{attempt}"


def tagged(options: SbatchOptions, word: str) -> SbatchOptions:
    """The options with our tag before the user's own comment, and that before all others."""
    comment = options.get("comment") or ""
    others = {name: value for name, value in options.items() if name != "comment"}
    return {"comment": f"{word} {comment}".strip()} | others


def tag_in(comment: str) -> str:
    """The tag with which a comment begins. What follows it is the user's own, and may look like a tag too."""
    found = TAG.match(comment)
    return found[0] if found else ""


def has_tag(comment: str) -> bool:
    """Whether a job is one of the bridge's, of whatever object."""
    return bool(tag_in(comment))


def tag_of_line(line: str) -> str:
    """The tag in the command line that submitted a job, if it is a command line of ours."""
    found = SUBMITTED.match(line)
    return found[1] if found else ""


def tag_of_accounted(job: AccountedJob) -> str:
    """By the line that submitted a job; where there is none, because slurmrestd took it, by its comment."""
    return tag_of_line(job.submit_line) if job.submit_line else tag_in(job.comment)
