"""A GPU of a host, whatever its maker."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """``number`` is that of ``file``, its main device file; ``files`` are all that a container needs for it.

    ``uuid`` is empty where the driver does not tell it.
    """

    number: int
    file: str
    files: tuple[str, ...]
    uuid: str = ""
    pci: str = ""
    numa_node: int | None = None
    driver: str = ""


def read(path: Path) -> str:
    """A file of the kernel's; empty if it is not there."""
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""


def numa_node(root: Path, pci: str) -> int | None:
    """Where a PCI device is connected; None if that is not known."""
    text = read(root / "sys/bus/pci/devices" / pci / "numa_node") if pci else ""
    return int(text) if text.isdigit() else None


def render_files(root: Path, pci: str, devices: Path) -> tuple[str, ...]:
    """The files of a PCI device in /dev/dri."""
    names = sorted(path.name for path in (root / "sys/bus/pci/devices" / pci / "drm").glob("*")) if pci else []
    paths = [devices / "dri" / name for name in names if name.startswith(("card", "renderD"))]
    return tuple(str(path) for path in paths if path.exists())
