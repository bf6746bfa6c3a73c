"""runc without root: the wrapper through which every container's bundle passes.

Slurm never delegates cgroups to users, so there is none that a container could be put into; and what the host mounted
read-only, a user cannot make writable. When a container is created, the wrapper takes out of the bundle's
``config.json`` what runc could only fail at; everything else goes to runc as it is.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def wrapper_script(python: str, runc: str) -> str:
    """A shell script, because the shim calls the runtime a dozen times per container and Python is needed for one."""
    here = shlex.quote(str(Path(__file__)))
    return f"""#!/bin/sh
for word in "$@"; do
  [ "$previous" = --bundle ] && bundle=$word
  [ "$word" = create ] && create=1
  previous=$word
done
[ -n "$create" ] && {{ {shlex.quote(python)} -I -S {here} "$bundle" || exit 1; }}
exec {shlex.quote(runc)} "$@"
"""


def without_cgroups(config: dict[str, Any]) -> dict[str, Any]:
    """The bundle's configuration, less what only cgroups could do."""
    linux = {key: value for key, value in config["linux"].items() if key not in {"cgroupsPath", "resources"}}
    return config | {"linux": linux}


def keeping_read_only(config: dict[str, Any], read_only: Callable[[str], bool]) -> dict[str, Any]:
    """The same with volumes no more writable than what they come from.

    A hostPath is asked for as ``rw`` unless the pod says otherwise, and the kernel locks the flags of mounts that were
    there before our user namespace: a site's read-only software tree could not be mounted at all.
    """

    def options(mount: dict[str, Any]) -> list[str]:
        asked: list[str] = mount.get("options", [])
        locked = "rw" in asked and {"bind", "rbind"} & set(asked) and read_only(mount["source"])
        return [option for option in asked if option != "rw"] if locked else asked

    return config | {"mounts": [mount | {"options": options(mount)} for mount in config.get("mounts", ())]}


def is_read_only(path: str) -> bool:
    """Whether a path lies on a mount that cannot be written."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:  # runc will say what is wrong with it
        return False


if __name__ == "__main__":
    path = Path(sys.argv[1]) / "config.json"
    bundle = json.loads(path.read_text())
    path.write_text(json.dumps(keeping_read_only(without_cgroups(bundle), is_read_only)))
