"""Becomes a rank: started by Slurm in each task of a step, on every host.

    python -m pinnace.podjobs.ranks.rank FILE

It enters the world that its host's companion holds, and executes the requested program. The process, its standard
streams and signals stay those of the Slurm task. A rank never has more rights than the process that requested it:
otherwise a setuid file of the image would run as root of the world.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.podjobs.ranks.ids import ProcessCredentials, swap_id
from pinnace.podjobs.ranks.launcher import BIN
from pinnace.sandbox.entering import enter
from pinnace.sandbox.linux import keep_capabilities, no_new_privileges
from pinnace.sandbox.one_user import ignore_id_changes
from pinnace.slurm import host_name
from pinnace.slurm.variables import is_secret

if TYPE_CHECKING:
    from collections.abc import Mapping

# Prefixes of the variables that Slurm sets for a task, for MPI libraries and accelerators.
TASK_PREFIXES = (
    "SLURM",
    "PMI",
    "OMPI_",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "GPU_DEVICE_ORDINAL",
)
# By default PMIx shares files of slurmd, which are not in the world, and uses munge, which need not be in the image.
PMIX = {"PMIX_GDS_MODULE": "hash", "PMIX_MCA_gds": "hash", "PMIX_SECURITY_MODE": "native"}
NOT_FOUND, NOT_EXECUTABLE = 127, 126


def environment(asked: Mapping[str, str], task: Mapping[str, str]) -> dict[str, str]:
    """The environment of the requesting process, with the variables that Slurm has set for the task."""
    own = {name: value for name, value in asked.items() if not name.startswith(TASK_PREFIXES[:2])}
    given = {name: value for name, value in task.items() if name.startswith(TASK_PREFIXES) and not is_secret(name)}
    return own | given | (PMIX if "PMIX_RANK" in given else {})


def find(program: str, path: str) -> str | None:
    """Find a program in PATH; `mpirun` is the image's own, not the launcher of that name."""
    if "/" in program:
        return program
    for directory in path.split(":"):
        if directory != BIN and os.access(f"{directory or '.'}/{program}", os.X_OK):
            return f"{directory or '.'}/{program}"
    return None


def main(argv: list[str]) -> int:
    request: dict[str, Any] = json.loads(Path(argv[0]).read_text())
    host = host_name(os.environ)
    uid, gid = os.getuid(), os.getgid()
    identity = ProcessCredentials.from_json(request["identity"])
    variables = environment(request["environment"], os.environ)
    command: list[str] = request["argv"]
    many_users = enter(request["worlds"][host])
    keep_capabilities(identity.capabilities)
    no_new_privileges()
    if many_users:
        if not identity.users_groups:  # else we have them, from Slurm
            os.setgroups([swap_id(group, gid, identity.gid) for group in identity.groups])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    else:
        ignore_id_changes()
    os.umask(identity.umask)
    try:
        os.chdir(request["directory"])
    except OSError as error:
        return _fail(command[0], f"{host}: cannot be in {request['directory']}: {error.strerror}", NOT_EXECUTABLE)
    found = find(command[0], variables.get("PATH", os.defpath))
    if not found:
        return _fail(command[0], f"{host}: there is no such program in the image or its volumes", NOT_FOUND)
    try:
        os.execve(found, command, variables)  # noqa: S606
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        return _fail(command[0], f"{host}: {error.strerror}", NOT_FOUND if missing else NOT_EXECUTABLE)


def _fail(program: str, why: str, code: int) -> int:
    sys.stderr.write(f"pinnace: {program}: {why}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
