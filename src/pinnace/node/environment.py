"""What the processes of a node get of the user's environment.

sbatch and srun hand on all of it, and users keep tokens and passwords there. A pod that sees the node's processes, as a
privileged one does, could read them. So the node gets what its programs need to find their files and the network.
"""

from __future__ import annotations

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
