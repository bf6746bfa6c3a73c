"""Kubernetes' names of devices and Slurm's: one table for all models, to which ``pods.toml`` adds."""

from __future__ import annotations

GPU = "gpu"  # Slurm's GRES
RDMA = "rdma/hca"
# An empty GRES: nothing has to be asked of Slurm, every job may use what its host has.
GRES = {
    "nvidia.com/gpu": GPU,
    "amd.com/gpu": GPU,
    "gpu.intel.com/i915": GPU,
    "gpu.intel.com/xe": GPU,
    RDMA: "",
}


def gres_name(gres: str) -> str:
    """``gpu`` of ``gpu:a100``."""
    return gres.partition(":")[0]


def gres_type(gres: str) -> str:
    """``a100`` of ``gpu:a100``; empty if it has none."""
    return gres.partition(":")[2]
