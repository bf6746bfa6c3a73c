"""The driver of the hosts' fake GPUs: files as NVIDIA's driver has them, with nothing behind the device files.

``/proc/driver`` cannot be made by a bed, so what would be there is below DRIVER: the description of each GPU and the
driver's version. Libraries are there too, as at sites that do not put them into /usr; ldconfig's cache leads to them.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.images.commands import run

if TYPE_CHECKING:
    from testbed.plan import Host

__all__ = ["DRIVER", "GPU_MAJOR", "LIBRARIES", "PROGRAMS", "VERSION", "gpu_path", "gpu_uuid", "install", "task_prolog"]

DRIVER = "/opt/driver"
LIBRARIES = f"{DRIVER}/lib64"
PROGRAMS = "/usr/local/bin"
VERSION = "535.161.08"
GPU_MAJOR = 240  # "local/experimental use": a fake device can be allowed or denied, opening it says ENXIO
MINORS_PER_HOST = 16
SOURCES = Path(__file__).parent
NAMES = ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler")


def gpu_path(number: int) -> str:
    return f"/dev/nvidia{number}"


def gpu_minor(host: Host, number: int) -> int:
    """Of the device file; as the UUID follows from it, no two hosts have the same."""
    return int(host.name.strip("n")) * MINORS_PER_HOST + number


def gpu_uuid(host: Host, number: int) -> str:
    """As in driver.c."""
    return f"GPU-66616b65-0000-4000-8000-{gpu_minor(host, number):012x}"


def information(host: Host, number: int) -> str:
    """What the driver says of a GPU in /proc/driver/nvidia/gpus/<PCI address>/information."""
    return (
        "Model: \t\t NVIDIA Stand-in\n"
        f"IRQ:   \t\t {100 + number}\n"
        f"GPU UUID: \t {gpu_uuid(host, number)}\n"
        "Bus Type: \t PCIe\n"
        f"Bus Location: \t {pci_address(number)}\n"
        f"Device Minor: \t {number}\n"
        "GPU Excluded:\t No\n"
    )


def pci_address(number: int) -> str:
    """Not in the order of the numbers."""
    return f"0000:{0x81 - 0x10 * number:02x}:00.0"


def task_prolog() -> str:
    """Tells jobs on hosts with GPUs where the description of these is."""
    return f"#!/bin/sh\n[ ! -d {DRIVER} ] || echo export PINNACE_DRIVER_ROOT={DRIVER}\n"


def build(cache: Path) -> Path:
    """The directory with the compiled libraries and nvidia-smi, made once."""
    sources = [SOURCES / name for name in ("driver.c", "nvidia-smi.c")]
    checksum = hashlib.sha256(b"".join(path.read_bytes() for path in sources) + VERSION.encode()).hexdigest()[:16]
    made = cache / f"driver-{checksum}"
    if made.is_dir():
        return made
    new = made.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    for name in NAMES:
        soname = f"-Wl,-soname,{name}.so.1"
        run(["gcc", "-O1", "-shared", "-fPIC", soname, "-o", str(new / f"{name}.so.{VERSION}"), str(sources[0])])
    run(["gcc", "-O1", "-o", str(new / "nvidia-smi"), str(sources[1])])
    new.replace(made)
    return made


def install(host: Host, own: Path, cache: Path) -> None:
    """Put the driver into the directories of a host that become its /opt, /etc and /usr/local/bin."""
    made = build(cache)
    top = own / Path(DRIVER).relative_to("/")
    libraries = own / Path(LIBRARIES).relative_to("/")
    programs = own / Path(PROGRAMS).relative_to("/")
    libraries.mkdir(parents=True)
    programs.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        shutil.copy(made / f"{name}.so.{VERSION}", libraries)
        (libraries / f"{name}.so.1").symlink_to(f"{name}.so.{VERSION}")
    (libraries / "libcuda.so").symlink_to("libcuda.so.1")
    shutil.copy(made / "nvidia-smi", programs)
    about = top / "proc/driver/nvidia"
    about.mkdir(parents=True)
    (about / "version").write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {VERSION}  Stand-in\n")
    for number in range(host.gpus):
        directory = about / "gpus" / pci_address(number)
        directory.mkdir(parents=True)
        (directory / "information").write_text(information(host, number))
    (own / "etc/ld.so.conf.d").mkdir(parents=True)
    (own / "etc/ld.so.conf.d/nvidia.conf").write_text(f"{LIBRARIES}\n")
