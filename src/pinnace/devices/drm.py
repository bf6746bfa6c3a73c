"""GPUs of AMD and Intel: render nodes of the kernel's DRM. Images for them bring their own libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinnace.devices.gpu import Gpu, numa_node, read

if TYPE_CHECKING:
    from pathlib import Path

AMD, INTEL = "0x1002", "0x8086"  # PCI vendors
KFD = "kfd"  # through which ROCm reaches all of AMD's
AMD_VARIABLES = ("ROCR_VISIBLE_DEVICES",)


def gpus(vendor: str, root: Path, devices: Path) -> list[Gpu]:
    """The GPUs of a vendor, by the numbers of their render nodes."""
    nodes = sorted((root / "sys/class/drm").glob("renderD*"), key=lambda path: int(path.name[7:]))
    uuids = _amd_uuids(root) if vendor == AMD else {}
    found = []
    for node in nodes:
        if read(node / "device/vendor") != vendor or not (devices / "dri" / node.name).exists():
            continue
        number = int(node.name.removeprefix("renderD"))
        cards = sorted(path.name for path in (node / "device/drm").glob("card*"))
        files = [devices / "dri" / name for name in (node.name, *cards)]
        pci = (node / "device").resolve().name
        found.append(
            Gpu(
                number=number,
                file=str(files[0]),
                files=tuple(str(path) for path in files if path.exists()),
                uuid=uuids.get(number, ""),
                pci=pci,
                numa_node=numa_node(root, pci),
                driver=(node / "device/driver").resolve().name,
            )
        )
    return found


def _amd_uuids(root: Path) -> dict[int, str]:
    """ROCm's names of GPUs, by the numbers of their render nodes."""
    found = {}
    for path in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties"):
        fields = dict(line.split(" ", 1) for line in read(path).splitlines() if " " in line)
        minor, unique = fields.get("drm_render_minor", "0"), fields.get("unique_id", "0")
        if int(minor) and int(unique):
            found[int(minor)] = f"GPU-{int(unique):016x}"
    return found
