"""Kubernetes, complete and unmodified, aboard Slurm: for people who have only a Slurm account.

    with pinnace.Cluster(nodes=2) as cluster:
        print(cluster.kubectl("get", "nodes").stdout)
        code = cluster.run("job.yaml", on_line=print).exit_code

    pinnace.Cluster(nodes=2).run_once("job.yaml")  # what `pinnace run -N 2 job.yaml` does

What ``__all__`` names is the public interface, and looked up late: the agents on compute nodes import this package too,
and must not pay for what they do not use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinnace.cluster.cluster import Cluster
    from pinnace.cluster.cluster_job import Place
    from pinnace.cluster.running import RunResult
    from pinnace.errors import ClusterError, PinnaceError, UsageError

__version__ = "0.1.0"
__all__ = ["Cluster", "ClusterError", "PinnaceError", "Place", "RunResult", "UsageError", "__version__"]

_MODULES = {
    "Cluster": "pinnace.cluster.cluster",
    "ClusterError": "pinnace.errors",
    "PinnaceError": "pinnace.errors",
    "Place": "pinnace.cluster.cluster_job",
    "RunResult": "pinnace.cluster.running",
    "UsageError": "pinnace.errors",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'pinnace' has no attribute {name!r}")
