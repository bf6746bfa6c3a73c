"""Kubernetes, complete and unmodified, aboard Slurm: for people who have only a Slurm account.

    with pinnace.Cluster(nodes=2) as cluster:
        subprocess.run(["kubectl", "get", "nodes"], env=os.environ | cluster.environment())

``Cluster`` is looked up late: the agents on compute nodes import this package too, and must not pay for what they do
not use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinnace.cluster.cluster import Cluster

__version__ = "0.1.0"
__all__ = ["Cluster", "__version__"]


def __getattr__(name: str) -> object:
    if name == "Cluster":
        from pinnace.cluster.cluster import Cluster  # noqa: PLC0415 - the reason is above

        return Cluster
    raise AttributeError(f"module 'pinnace' has no attribute {name!r}")
