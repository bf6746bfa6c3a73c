"""The environment variables of a node's processes: a selection of the user's.

sbatch and srun pass all of them on, and users keep tokens and passwords there. A pod that sees the node's processes, as
a privileged one does, could read them. So the node gets only what its programs need to find files and the network.
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
KEPT_PREFIXES = ("LC_", "PYTHON")
PROXY_VARIABLES = {"http_proxy", "https_proxy", "all_proxy", "no_proxy"}  # in lower or upper case


def node_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a node's processes get."""
    return {
        name: value
        for name, value in environment.items()
        if name in KEPT or name.startswith(KEPT_PREFIXES) or name.lower() in PROXY_VARIABLES
    }


def restrict_environment() -> None:
    """Remove all other variables from this process, from those that it starts, and from /proc/self/environ.

    /proc/PID/environ shows the memory in which the process got its environment when it was started. So the kept
    variables are copied, and that memory is overwritten.
    """
    kept = node_environment(os.environ)
    for name in list(os.environ):
        del os.environ[name]
    os.environ.update(kept)
    begin, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])  # see proc(5)
    ctypes.memset(begin, 0, end - begin)
