"""NVIDIA's GPUs, from what the driver says to everybody in /proc/driver/nvidia: without NVML and without a toolkit."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pinnace.devices.gpu import Gpu, numa_node, read, render_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

VARIABLES = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
COMMON = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
CAPABILITIES = "nvidia-caps"
NOT_OF_INSTANCES = {"nvidia-cap1", "nvidia-cap2"}  # to configure and to monitor all of MIG
_MIG = re.compile(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)")  # GPU, GPU instance, compute instance


def gpus(root: Path, devices: Path) -> list[Gpu]:
    """The GPUs of the host, by number. ``root`` is where /proc and /sys are, ``devices`` is /dev."""
    about = [_information(read(path)) for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))]
    known = {int(fields["Device Minor"]): fields for fields in about if fields.get("Device Minor", "").isdigit()}
    files = [path for path in devices.glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdigit()]
    return [_gpu(path, known, root) for path in sorted(files, key=lambda path: int(path.name[6:]))]


def _information(text: str) -> dict[str, str]:
    """Lines such as ``GPU UUID: <tab> GPU-4d4f…``."""
    fields = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in fields}


def _gpu(path: Path, known: dict[int, dict[str, str]], root: Path) -> Gpu:
    number = int(path.name.removeprefix("nvidia"))
    fields = known.get(number, {})
    uuid, pci = fields.get("GPU UUID", ""), fields.get("Bus Location", "")
    return Gpu(
        number=number,
        file=str(path),
        files=(str(path), *render_files(root, pci, path.parent)),
        uuid="" if "?" in uuid else uuid,  # not known before the GPU is first used
        pci=pci,
        numa_node=numa_node(root, pci),
        driver="nvidia",
    )


def common_files(devices: Path) -> tuple[str, ...]:
    """The device files that are for all GPUs together."""
    return tuple(str(devices / name) for name in COMMON if (devices / name).exists())


def version(root: Path) -> str:
    """Of the driver; empty if there is none."""
    found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", read(root / "proc/driver/nvidia/version"))
    return found[0] if found else ""


def mig_files(
    name: str, gpus: Sequence[Gpu], root: Path, devices: Path, may_use: Callable[[str], bool]
) -> tuple[str, ...]:
    """The files of a MIG device. Names without the GPU in them do not lead anywhere without NVML.

    Then these are all that the device cgroup of the job leaves, and CUDA_VISIBLE_DEVICES says which of them counts.
    """
    found = _MIG.fullmatch(name)
    parent = next((gpu for gpu in gpus if found and gpu.uuid == found[1]), None)
    if found and parent:
        instance = root / f"proc/driver/nvidia/capabilities/gpu{parent.number}/mig/gi{found[2]}"
        minors = (
            _information(read(path / "access")).get("DeviceFileMinor")
            for path in (instance, instance / f"ci{found[3]}")
        )
        caps = [devices / CAPABILITIES / f"nvidia-cap{minor}" for minor in minors if minor]
        return (parent.file, *(str(path) for path in caps if path.exists()))
    caps = [path for path in sorted((devices / CAPABILITIES).glob("nvidia-cap*")) if path.name not in NOT_OF_INSTANCES]
    return tuple(path for path in (*(gpu.file for gpu in gpus), *map(str, caps)) if may_use(path))
