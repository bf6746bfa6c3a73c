"""What the processes of a node get of the user's environment.

sbatch and srun hand on all of it, and users keep tokens and passwords there. A pod that sees the node's processes, as a
privileged one does, could read them. So the node gets what its programs need to find their files and the network.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.slurm.variables import OF_JOBS

if TYPE_CHECKING:
    from collections.abc import Mapping

KEPT = OF_JOBS | {
    "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LD_PRELOAD", "LOGNAME", "PATH", "SHELL", "TZ", "USER",
    "GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GOTRACEBACK",
    "PINNACE_HOME", "PINNACE_IMAGE_CACHE", "PINNACE_SCRATCH", "PINNACE_TRUST",
    "SSL_CERT_DIR", "SSL_CERT_FILE",
}  # fmt: skip
KEPT_FAMILIES = ("LC_", "PYTHON")
PROXIES = {"http_proxy", "https_proxy", "all_proxy", "no_proxy"}  # in small letters or large ones


def of_node(environment: Mapping[str, str]) -> dict[str, str]:
    """The part that a node's processes get."""
    return {
        name: value
        for name, value in environment.items()
        if name in KEPT or name.startswith(KEPT_FAMILIES) or name.lower() in PROXIES
    }


def forget_the_rest() -> None:
    """Let this process, and all that it starts, have that part alone; /proc shows no more of it either.

    The kernel shows the memory in which a process found its environment when its program was started, so what is kept
    is copied, and that memory is overwritten.
    """
    kept = of_node(os.environ)
    for name in list(os.environ):
        del os.environ[name]
    os.environ.update(kept)
    begin, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])  # see proc(5)
    ctypes.memset(begin, 0, end - begin)
