"""The one place where this package starts a process and waits for it."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
from typing import TYPE_CHECKING

from testbed.errors import BedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# Messages are parsed and shown, and nothing here can answer a question of debconf.
ENVIRONMENT = {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
NO_SPACE = ("No space left on device", "enough free space")  # the second is apt's own wording


class CommandError(BedError):
    """A command failed; the message holds the command, to be pasted, and the last lines of what it said."""


def run(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float = 300,
    hint: str = "",
) -> str:
    """Return what a command writes to its standard output. A full disk is the same error as in our own writes."""
    try:
        done = subprocess.run(
            argv,
            cwd=cwd,
            env={**os.environ, **ENVIRONMENT, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError as error:
        raise CommandError(f"{argv[0]} is not installed", hint=hint) from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"after {seconds:g} s still running: {shlex.join(argv)}", hint=hint) from error
    if done.returncode:
        if any(words in done.stderr for words in NO_SPACE):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        said = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-5:])
        raise CommandError(f"exit code {done.returncode} from: {shlex.join(argv)}\n{said}", hint=hint)
    return done.stdout
