"""The libraries and programs of a host's GPU driver, which must be those of its kernel module and so no image has them.

Containers get each file of the host, read-only, in one directory and under the names by which programs ask for them;
the loader's cache of the container leads there. NVIDIA's own images look into that directory without a cache.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.devices.loader_cache import FLAGS, parse, with_libraries
from pinnace.sandbox.linux import RESOLVE_IN_ROOT, openat2

if TYPE_CHECKING:
    from collections.abc import Mapping

DIRECTORY = "/usr/local/nvidia/lib64"
# Compute, video, graphics and management. What is vendor-neutral, as libGL, is the image's own.
NVIDIA = re.compile(
    r"lib(cuda|cudadebugger|nvcuvid|nvoptix|(GLX|EGL|GLESv1_CM|GLESv2|vdpau)_nvidia"
    r"|nvidia-(?!gtk|container|vgpu|wayland)[a-z0-9-]+)\.so(\.[0-9.]+)?"
)
PROGRAMS = ("nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
SYSTEM_PATH = "/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin"
# How loaders of OpenCL, EGL and Vulkan find the driver.
DESCRIPTIONS = (
    "/etc/OpenCL/vendors/nvidia.icd",
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "/usr/share/vulkan/icd.d/nvidia_icd.json",
    "/etc/vulkan/icd.d/nvidia_icd.json",
    "/usr/share/nvidia/nvoptix.bin",
)
CACHE = "ld.so.cache"
CONFIGURATION = "ld.so.conf.d"
NEW = ".pinnace"
MAX_CACHE = 16 << 20  # bytes; that of a large distribution has some hundred KiB


def nvidia_libraries(loader_cache: Path) -> dict[str, str]:
    """The driver's libraries by all their names, from the host's loader cache: real paths, of this architecture."""
    try:
        entries = parse(loader_cache.read_bytes())
    except OSError:
        return {}
    found: dict[str, str] = {}
    for entry in entries:
        if entry.flags == FLAGS and NVIDIA.fullmatch(entry.name) and entry.name not in found:
            with contextlib.suppress(OSError):
                real = str(Path(entry.path).resolve(strict=True))
                found[entry.name] = real
                found.setdefault(Path(real).name, real)
    return found


def nvidia_mounts(loader_cache: Path) -> dict[str, str]:
    """What a container with an NVIDIA GPU gets: paths of the host, by paths in the container."""
    paths = {f"{DIRECTORY}/{name}": path for name, path in nvidia_libraries(loader_cache).items()}
    for name in PROGRAMS:
        for directory in SYSTEM_PATH.split(":"):
            if os.access(f"{directory}/{name}", os.X_OK):
                paths[f"/usr/bin/{name}"] = str(Path(directory, name).resolve())
                break
    return paths | {path: path for path in DESCRIPTIONS if Path(path).is_file()}


def mounted(config: Mapping[str, Any]) -> list[str]:
    """The names of the libraries that a container gets by the mounts of its bundle."""
    targets = (mount["destination"] for mount in config.get("mounts", ()))
    return [target.rpartition("/")[2] for target in targets if target.startswith(f"{DIRECTORY}/")]


def update_loader_cache(config: Mapping[str, Any], bundle: Path) -> None:
    """Let the loader of a container that is about to be created find the libraries that are mounted into it.

    The file is written into the container's own layer of the image, not mounted: ldconfig in the container may replace
    it, and finds the directory in its configuration. No link of the image leads us out of it.
    """
    names = mounted(config)
    if not names:
        return
    root = os.open(bundle / config["root"]["path"], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        etc = openat2(root, "etc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, RESOLVE_IN_ROOT)
    except FileNotFoundError:  # an image of one static program
        return
    finally:
        os.close(root)
    try:
        _replace(etc, CACHE, with_libraries(_read(etc, CACHE), {name: f"{DIRECTORY}/{name}" for name in names}))
        with contextlib.suppress(OSError):  # an image without ldconfig
            directory = os.open(CONFIGURATION, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=etc)
            try:
                _replace(directory, "000-nvidia.conf", f"{DIRECTORY}\n".encode())
            finally:
                os.close(directory)
    finally:
        os.close(etc)


def _read(directory: int, name: str) -> bytes:
    """A file of the image, of which nothing is known; empty if it has none, something else, or too much of it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(MAX_CACHE + 1)
            return content if len(content) <= MAX_CACHE else b""
    return b""


def _replace(directory: int, name: str, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(f"{name}{NEW}", flags, 0o644, dir_fd=directory), "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), 0o644)
    os.rename(f"{name}{NEW}", name, src_dir_fd=directory, dst_dir_fd=directory)
