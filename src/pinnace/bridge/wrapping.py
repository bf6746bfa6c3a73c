"""Scripts inside a script of ours, with what brings their inputs and takes their results where the bridge does not see
their files. Pure functions.

S3 is accessed with curl and presigned URLs for one object each, so the job gets no credentials. The URLs are not on
command lines, where other users could read them.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from pinnace.slurm import scripts
from pinnace.slurm.scripts import document

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def wrapped(script: str, *, before: Sequence[str] = (), after: Sequence[str] = ()) -> str:
    """A script that runs another and ends like it, with commands before and after that use the functions."""
    return scripts.wrapped(script, before=[FUNCTIONS, *before], after=after)


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
