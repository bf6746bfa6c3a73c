"""Wraps a script in a script of ours: with arguments, and with commands that transfer inputs and results where the
bridge does not see the job's files. Pure functions.

S3 is accessed with curl and presigned URLs for one object each, so the job gets no credentials. The URLs are not on
command lines, where other users could read them.
"""

from __future__ import annotations

import base64
import shlex
from typing import TYPE_CHECKING

from pinnace.validation import variable_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Jobs of slurmrestd have no HOME. Files are written atomically: tasks of an array may fetch the same one at once.
FUNCTIONS = r"""
[ -n "$HOME" ] || export HOME="$(getent passwd "$(id -u)" | cut -d: -f6)"
ask() { url=$1; shift; printf 'url = "%s"\n' "$url" | curl --config - --globoff --fail --silent --show-error "$@"; }
part() { mkdir -p "$(dirname "$1")" && part=$(mktemp "$1.XXXXXX"); }
put() { part "$1" && base64 -d >"$part" && mv "$part" "$1"; }
fetch() { part "$1" && ask "$2" --output "$part" && mv "$part" "$1"; }
bring() { mkdir -p "$(dirname "$1")" && cp -R "$2" "$1"; }
store() { ask "$2" --upload-file "$1"; }
keep() (IFS=; for file in $1; do mkdir -p "$2/$(dirname "$file")" && cp -R "$file" "$2/$file"; done)
"""
# The script gets Slurm's signals; the commands after it run all the same. An interrupted wait is started again.
RUN = r"""
exec 3<&0
(
set -- "$script" {arguments} "$@"
{exports}exec "$@" <&3 3<&-
) & child=$!
for name in TERM INT HUP USR1 USR2; do trap "kill -$name $child" "$name"; done
while :; do wait "$child"; code=$?; kill -0 "$child" 2>/dev/null || break; done
"""


def wrapped(
    script: str,
    arguments: Sequence[str] = (),
    *,
    environment: Mapping[str, str] | None = None,
    before: Sequence[str] = (),
    after: Sequence[str] = (),
) -> str:
    """A script that runs another and exits with its code. Only that one gets the variables."""
    exports = [f"export {variable_name(name)}={shlex.quote(value)}\n" for name, value in (environment or {}).items()]
    head, _, tail = RUN.partition("{exports}")
    run = "".join([head.replace("{arguments}", shlex.join(arguments)), *exports, tail])
    lines = [
        "#!/bin/sh",
        *([FUNCTIONS] if before or after else []),
        *before,
        "script=$(mktemp) || exit 1\ntrap 'rm -f \"$script\"' EXIT",
        f'base64 -d >"$script" {document(script.encode())}',
        'chmod 700 "$script"',
        run,
        *after,
        'exit "$code"',
        "",
    ]
    return "\n".join(lines)


def document(data: bytes) -> str:
    return f"<<'END'\n{base64.encodebytes(data).decode()}END"


def put(to: str, data: bytes) -> str:
    """Write an input whose content is in the wrapper."""
    return f"put {shlex.quote(to)} {document(data)}\n{or_end(to)}"


def fetch(to: str, url: str) -> str:
    """Download an input from a presigned URL."""
    return f"fetch {shlex.quote(to)} {shlex.quote(url)}\n{or_end(to)}"


def bring(to: str, source: str) -> str:
    """Copy an input from a path on the cluster."""
    return f"bring {shlex.quote(to)} {path(source)}\n{or_end(to)}"


def or_end(to: str) -> str:
    return f"[ $? = 0 ] || {{ echo {shlex.quote(f'pinnace: there is no input {to}')} >&2; exit 1; }}"


def store(name: str, url: str) -> str:
    """Upload a result to a presigned URL. The bridge checks afterwards that it has arrived."""
    return f"store {shlex.quote(name)} {shlex.quote(url)}"


def keep(pattern: str, directory: str) -> str:
    """Copy results to a directory on the cluster."""
    return f"keep {shlex.quote(pattern)} {path(directory)}"


def path(text: str) -> str:
    """Quote a path for the shell; ``~/`` is the home of the job's user."""
    return f'"$HOME"/{shlex.quote(text[2:])}' if text.startswith("~/") else shlex.quote(text)
