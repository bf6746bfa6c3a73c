"""Scripts inside a script of ours, with what brings their inputs and takes their results where the bridge does not see
their files. Pure functions.

S3 is reached with curl and addresses that are signed for one object each, so no credentials go to the job. They are not
on command lines, where others could read them.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from pinnace.slurm import scripts
from pinnace.slurm.scripts import document

if TYPE_CHECKING:
    from collections.abc import Sequence

# Jobs of slurmrestd have no HOME. A file appears whole: tasks of an array may bring the same one at the same time.
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
    """An input that the script itself holds."""
    return f"put {shlex.quote(to)} {document(data)}\n{or_end(to)}"


def fetch(to: str, url: str) -> str:
    """An input in S3."""
    return f"fetch {shlex.quote(to)} {shlex.quote(url)}\n{or_end(to)}"


def bring(to: str, source: str) -> str:
    """An input that is somewhere on the cluster."""
    return f"bring {shlex.quote(to)} {path(source)}\n{or_end(to)}"


def or_end(to: str) -> str:
    return f"[ $? = 0 ] || {{ echo {shlex.quote(f'pinnace: there is no input {to}')} >&2; exit 1; }}"


def store(name: str, url: str) -> str:
    """A result for S3. Whether it has come there is looked at by the bridge."""
    return f"store {shlex.quote(name)} {shlex.quote(url)}"


def keep(pattern: str, directory: str) -> str:
    """Results for a directory of the cluster."""
    return f"keep {shlex.quote(pattern)} {path(directory)}"


def path(text: str) -> str:
    """A path for the shell; of those of a home, the job's own."""
    return f'"$HOME"/{shlex.quote(text[2:])}' if text.startswith("~/") else shlex.quote(text)
