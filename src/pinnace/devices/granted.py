"""Which of a host's GPUs Slurm gave to the job: by the variables of the step, and by what the kernel lets us open.

Slurm numbers GPUs as their device files are numbered, or in the order of gres.conf where these have no numbers. Where
the site constrains devices (ConstrainDevices), the device cgroup of the job says the same without a doubt.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pinnace.devices.gpu import Gpu

VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def accessible(path: str) -> bool:
    """Whether we may read and write a device file. access(2) asks the device cgroup too, and wakes no device up."""
    return os.access(path, os.R_OK | os.W_OK)


def named_gpus(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """The names of the job's GPUs on this host: numbers, or UUIDs as of MIG devices. None without Slurm: all.

    SLURM_JOB_GPUS is that of the first host, and srun hands it on to all: it counts in the batch script alone.
    """
    if "SLURM_JOB_ID" not in environment:
        return None
    in_step = environment.get("SLURM_STEP_ID", "").isdigit() and "SLURM_STEP_NODELIST" in environment
    numbers = _names(environment.get("SLURM_STEP_GPUS" if in_step else "SLURM_JOB_GPUS", ""))
    for name in VISIBLE if numbers else ():
        visible = _names(environment.get(name, ""))
        if visible and all(word.startswith(("GPU-", "MIG-")) for word in visible):
            return visible
    return numbers


def _names(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def chosen(gpus: Sequence[Gpu], names: Sequence[str] | None, may_use: Callable[[str], bool] = accessible) -> list[Gpu]:
    """Those of the host's GPUs that the job has and that can be opened."""
    usable = [gpu for gpu in gpus if may_use(gpu.file)]
    if names is None:
        return usable
    if len(usable) == len(names) and len(usable) < len(gpus):
        return usable  # the device cgroup leaves no doubt
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    by_number = {str(gpu.number): gpu for gpu in gpus}
    by_order = {str(index): gpu for index, gpu in enumerate(gpus)}
    for known in (by_uuid, by_number, by_order):
        if all(name in known for name in names):
            return [known[name] for name in names if known[name] in usable]
    return []
