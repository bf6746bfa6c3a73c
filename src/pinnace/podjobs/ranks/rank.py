"""Becomes a rank: started by Slurm in each task of a step, on every host.

    python -m pinnace.podjobs.ranks.rank FILE

It enters the world that its host's companion holds, and then is the program that was asked for: with its process
number, standard streams and signals, Slurm's own. It never has more rights than whoever asked for it: the world is as
root made it, and a setuid file of the image would be root there.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.podjobs.ranks.entering import enter
from pinnace.podjobs.ranks.ids import Identity, exchange
from pinnace.podjobs.ranks.launcher import BIN
from pinnace.sandbox.linux import keep_capabilities, no_new_privileges
from pinnace.sandbox.one_user import ignore_id_changes
from pinnace.slurm import host_name
from pinnace.slurm.variables import is_secret

if TYPE_CHECKING:
    from collections.abc import Mapping

# What Slurm says to a task, and with it to the libraries of MPI and of accelerators.
SLURM = (
    "SLURM",
    "PMI",
    "OMPI_",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "GPU_DEVICE_ORDINAL",
)
# PMIx would share files of slurmd's, which are not in the world, and ask for munge, which need not be in the image.
PMIX = {"PMIX_GDS_MODULE": "hash", "PMIX_MCA_gds": "hash", "PMIX_SECURITY_MODE": "native"}
NOT_FOUND, NOT_EXECUTABLE = 127, 126


def environment(asked: Mapping[str, str], task: Mapping[str, str]) -> dict[str, str]:
    """That of whoever asked for the rank, and what Slurm gave to the task."""
    own = {name: value for name, value in asked.items() if not name.startswith(SLURM[:2])}
    given = {name: value for name, value in task.items() if name.startswith(SLURM) and not is_secret(name)}
    return own | given | (PMIX if "PMIX_RANK" in given else {})


def find(program: str, path: str) -> str | None:
    """A program as a shell would find it; but `mpirun` is the image's own, not the launcher of that name."""
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
    identity = Identity.from_json(request["identity"])
    variables = environment(request["environment"], os.environ)
    words: list[str] = request["argv"]
    many_users = enter(request["worlds"][host])
    keep_capabilities(identity.capabilities)
    no_new_privileges()
    if many_users:
        os.setgroups([exchange(group, gid, identity.gid) for group in identity.groups])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    else:
        ignore_id_changes()
    os.umask(identity.umask)
    try:
        os.chdir(request["directory"])
    except OSError as error:
        return _fail(words[0], f"{host}: cannot be in {request['directory']}: {error.strerror}", NOT_EXECUTABLE)
    found = find(words[0], variables.get("PATH", os.defpath))
    if not found:
        return _fail(words[0], f"{host}: there is no such program in the image or its volumes", NOT_FOUND)
    try:
        os.execve(found, words, variables)  # noqa: S606
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        return _fail(words[0], f"{host}: {error.strerror}", NOT_FOUND if missing else NOT_EXECUTABLE)


def _fail(program: str, why: str, code: int) -> int:
    sys.stderr.write(f"pinnace: {program}: {why}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
