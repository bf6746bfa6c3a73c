"""The site's software: Python projects in /opt/pinnace of every host, as staff would install them.

The hosts have no network to the outside, so the wheels are made on the machine, with Debian's Python, which is the one
that the hosts have. Not editable: the users of the bed cannot read the checkout, and shall see what a user would get.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from typing import TYPE_CHECKING

from testbed.errors import BedError

if TYPE_CHECKING:
    from pathlib import Path

    from testbed.bed import Bed

__all__ = ["PREFIX", "install"]

PYTHON = "/usr/bin/python3"
PREFIX = "/opt/pinnace"
LIMIT = 300.0  # seconds; pip may have to download


def install(bed: Bed, project: Path, *, share: Path | None = None) -> None:
    """Install a project with its dependencies at PREFIX; ``share`` becomes the directory PREFIX/share/pinnace."""
    wheels = bed.directories.cache / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    tools = _tools(bed.directories.cache / "wheel-tools")
    for old in wheels.glob("pinnace-*.whl"):
        old.unlink()
    constraints = project / "constraints.txt"
    limits = ["--constraint", str(constraints)] if constraints.exists() else []
    _run(
        [
            f"{tools}/bin/pip",
            "wheel",
            "--quiet",
            "--no-build-isolation",
            "--no-deps",
            "--wheel-dir",
            str(wheels),
            str(project),
        ]
    )
    (wheel,) = wheels.glob("pinnace-*.whl")
    wanted = hashlib.sha256((project / "pyproject.toml").read_bytes() + b"".join(
        constraints.read_bytes() for _ in limits)).hexdigest()  # fmt: skip
    stamp = wheels / "dependencies"
    if not stamp.exists() or stamp.read_text() != wanted:
        _run([f"{tools}/bin/pip", "wheel", "--quiet", *limits, "--wheel-dir", str(wheels), str(wheel)])
        stamp.write_text(wanted)
    inside = bed.directories.state / "opt" / "pinnace"
    staged = inside / "wheels"
    shutil.copytree(wheels, staged, dirs_exist_ok=True)
    try:
        if not (inside / "bin" / "python3").is_symlink():
            bed.run([PYTHON, "-m", "venv", PREFIX], user="root", timeout=LIMIT)
        bed.run(
            [f"{PREFIX}/bin/pip", "install", "--quiet", "--no-index", "--find-links", f"{PREFIX}/wheels",
             "--force-reinstall", "--no-deps", "pinnace"],
            user="root", timeout=LIMIT,
        )  # fmt: skip
        bed.run(
            [f"{PREFIX}/bin/pip", "install", "--quiet", "--no-index", "--find-links", f"{PREFIX}/wheels", "pinnace"],
            user="root",
            timeout=LIMIT,
        )
    finally:
        shutil.rmtree(staged)
    if share:
        _share(share, inside / "share" / "pinnace")


def _share(source: Path, target: Path) -> None:
    """Give the hosts large files without copying them, where the file system allows."""
    shutil.rmtree(target, ignore_errors=True)
    result = subprocess.run(
        ["cp", "--archive", "--link", str(source), str(target)],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    if result.returncode:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)


def _tools(path: Path) -> Path:
    """An environment with what builds wheels."""
    if not (path / "ready").exists():
        _run([PYTHON, "-m", "venv", "--clear", str(path)])
        _run([f"{path}/bin/pip", "install", "--quiet", "wheel", "hatchling"])
        (path / "ready").touch()
    return path


def _run(argv: list[str]) -> None:
    result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LIMIT)
    if result.returncode:
        raise BedError(f"{' '.join(argv)} failed:\n{result.stdout}{result.stderr}")
