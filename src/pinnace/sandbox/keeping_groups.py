"""Keeps the user's supplementary groups in containers, by a filter that lets setgroups(2) succeed without effect.

    python -m pinnace.sandbox.keeping_groups PROGRAM ARGUMENT…      executes a program behind it

A process keeps its groups when it enters a user namespace, also those that the namespace does not map: they appear as
65534, open what they open outside, and cannot be named in setgroups(2). So they are kept where nobody calls that. runc
does, for every container: it has to be executed behind the filter.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pinnace import c_library
from pinnace.interpreter import python_argv
from pinnace.sandbox.ignored_syscalls import ignore

PROGRAM = Path(__file__).with_name("_keep_groups")
SOURCES = Path(__file__).with_name("keep_groups")
NO_PROGRAM = 2  # its exit code if it is told none
RUN_TIMEOUT = 10.0  # seconds


def has_groups() -> bool:
    """Whether this process, in a node's user namespace, has groups of the user's beside the first, which is root's."""
    return any(os.getgroups())


def keeper_argv(program: Path = PROGRAM) -> list[str]:
    """The command that executes a program behind the filter: in C, or in Python where that could not be compiled."""
    if c_library.is_program(program, c_library.sources(SOURCES)) and _runs(program):
        return [str(program)]
    python, *rest = python_argv("pinnace.sandbox.keeping_groups")
    return [python, "-S", *rest]  # without the installed packages, for which Python would look at every start


def _runs(program: Path) -> bool:
    """Whether a program runs here: it may be for another machine, or for a newer C library."""
    try:
        done = subprocess.run([program], stderr=subprocess.DEVNULL, check=False, timeout=RUN_TIMEOUT)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == NO_PROGRAM


def main(argv: list[str]) -> None:
    ignore(("setgroups",))
    os.execv(argv[0], argv)  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
