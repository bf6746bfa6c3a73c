"""runc without cgroups: the wrapper through which every container's bundle passes.

Slurm never delegates cgroups to users, so there is none that a container could be put into. The wrapper takes what
concerns cgroups out of the bundle's ``config.json`` when a container is created; everything else goes to runc as it is.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any


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


if __name__ == "__main__":
    path = Path(sys.argv[1]) / "config.json"
    path.write_text(json.dumps(without_cgroups(json.loads(path.read_text()))))
