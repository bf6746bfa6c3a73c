"""Batch scripts: their directives, and scripts inside a script of ours. Pure functions."""

from __future__ import annotations

import base64
import re
import shlex
from typing import TYPE_CHECKING

from pinnace.errors import UsageError
from pinnace.slurm.allowed_options import SLURMJOB
from pinnace.slurm.options import SbatchOptions, parse
from pinnace.validation import printable, variable_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DIRECTIVE = re.compile(r"#(?=SBATCH|SLURM|BSUB|PBS)")
# A file for the script where programs can run: /tmp may be mounted noexec.
PLACE = r"""
for place in "${TMPDIR:-/tmp}" /var/tmp "$PWD"; do
  script=$(mktemp "$place/pinnace-XXXXXXXX" 2>/dev/null) || continue
  echo '#!/bin/sh' >"$script" && chmod 700 "$script" && "$script" 2>/dev/null </dev/null && break
  rm -f "$script"; script=
done
[ -n "$script" ] || { echo 'pinnace: no script can be run in TMPDIR, /var/tmp or the job directory' >&2; exit 1; }
trap 'rm -f "$script"' EXIT
"""
# The script hears Slurm's signals, and what follows it is done all the same. A wait that a signal ends is begun anew.
RUN = r"""
exec 3<&0
(
set -- "$script" {arguments} "$@"
{exports}exec "$@" <&3 3<&-
) & child=$!
for name in TERM INT HUP USR1 USR2; do trap "kill -$name $child" "$name"; done
while :; do wait "$child"; code=$?; kill -0 "$child" 2>/dev/null || break; done
"""


def batch_script(directives: Sequence[str], command: str, *, shebang: str = "#!/bin/bash -l") -> str:
    """A batch script: its directives and its only command."""
    return "\n".join([shebang, *(f"#SBATCH {directive}" for directive in directives), "", command, ""])


def header(script: str) -> int:
    """How many lines of a script sbatch searches for directives: those before the first command.

    As in sbatch, only a newline ends a line.
    """
    lines = script.split("\n")
    commands = (number for number, line in enumerate(lines) if line.strip(" \t\r\v\f")[:1] not in {"", "#"})
    return next(commands, len(lines))


def directives(script: str) -> SbatchOptions:
    """What a script's ``#SBATCH`` lines say. As for sbatch, they end with the first command."""
    given: SbatchOptions = {}
    for line in script.split("\n")[: header(script)]:
        if line.startswith("#SBATCH"):
            try:
                given |= parse(shlex.split(line.removeprefix("#SBATCH"), comments=True), SLURMJOB)
            except ValueError as error:
                raise UsageError(f"{printable(line, 80)}: {error}") from error
    return given


def without_directives(script: str) -> str:
    """The script with its directives made comments, for sbatch, which is given what of them is allowed as options."""
    lines, count = script.split("\n"), header(script)
    commented = [DIRECTIVE.sub("# ", line, count=1) if DIRECTIVE.match(line) else line for line in lines[:count]]
    return "\n".join([*commented, *lines[count:]])


def wrapped(
    script: str,
    arguments: Sequence[str] = (),
    *,
    environment: Mapping[str, str] | None = None,
    before: Sequence[str] = (),
    after: Sequence[str] = (),
) -> str:
    """A script that runs another and ends like it, with commands before and after. The variables are for that alone."""
    exports = [f"export {variable_name(name)}={shlex.quote(value)}\n" for name, value in (environment or {}).items()]
    head, _, tail = RUN.partition("{exports}")
    run = "".join([head.replace("{arguments}", shlex.join(arguments)), *exports, tail])
    lines = [
        "#!/bin/sh",
        *before,
        PLACE,
        f'base64 -d >"$script" {document(script.encode())}',
        run,
        *after,
        'exit "$code"',
        "",
    ]
    return "\n".join(lines)


def document(data: bytes) -> str:
    """A here-document that `base64 -d` makes the data of."""
    return f"<<'END'\n{base64.encodebytes(data).decode()}END"
