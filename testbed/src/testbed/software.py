"""The site's software: a Python project in /opt/pinnace of every host, as staff would install it.

The hosts have no network to the outside, so the wheels are made or downloaded on the machine, for the Python of the
hosts' release of Debian. Not editable: the users of the bed cannot read the checkout, and shall see what a user would
get.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from typing import TYPE_CHECKING

from testbed.errors import BedError
from testbed.generations import OF_MACHINE, generation

if TYPE_CHECKING:
    from pathlib import Path

    from testbed.bed import Bed

__all__ = ["PREFIX", "install"]

PYTHON = "/usr/bin/python3"
PREFIX = "/opt/pinnace"
LIMIT = 300.0  # seconds; pip may have to download


def install(bed: Bed, project: Path, *, share: Path | None = None, extras: str = "") -> None:
    """Install a project with its dependencies at PREFIX; ``share`` becomes the directory PREFIX/share/pinnace.

    ``extras`` are those of its optional dependencies that are wanted, in brackets: ``[s3]``.
    """
    inside = bed.directories.opt / "pinnace"
    wheels = make_wheels(project, bed.directories.cache, extras, python=bed.plan.generation.python)
    shutil.copytree(wheels, inside / "wheels", dirs_exist_ok=True)
    argv = [
        "install",
        "--quiet",
        "--no-index",
        f"--find-links={PREFIX}/wheels",
        "--force-reinstall",
        project_name(project) + extras,
    ]
    try:
        if not (inside / "bin" / "pip").exists():
            bed.run([PYTHON, "-m", "venv", PREFIX], user="root", timeout=LIMIT)
        bed.run([f"{PREFIX}/bin/pip", *argv], user="root", timeout=LIMIT)
    finally:
        shutil.rmtree(inside / "wheels")
    if share:
        link_tree(share, inside / "share" / "pinnace")


def project_name(project: Path) -> str:
    lines = (project / "pyproject.toml").read_text().splitlines()
    return next(line.split('"')[1] for line in lines if line.startswith("name = "))


def make_wheels(project: Path, cache: Path, extras: str = "", *, python: str = generation(OF_MACHINE).python) -> Path:
    """The project's wheel, made anew, and those of its dependencies, downloaded when they have changed.

    The project's own is good for every Python, those of dependencies for this version.
    """
    checkout = hashlib.sha256(f"{project}{extras}{python}".encode()).hexdigest()[:8]
    wheels, pip = cache / f"wheels-{checkout}", make_pip(cache / "wheel-tools")
    constraints = project / "constraints.txt"
    wanted = hashlib.sha256((project / "pyproject.toml").read_bytes() + constraints.read_bytes()).hexdigest()
    stamp = wheels / "dependencies"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(wheels, ignore_errors=True)
    run([pip, "wheel", "--quiet", "--no-build-isolation", "--no-deps", f"--wheel-dir={wheels}", str(project)])
    if not stamp.exists():
        [own] = wheels.glob("*.whl")
        run([pip, *download_argv(f"{own}{extras}", wheels, constraints, python)])
        stamp.write_text(wanted)
    return wheels


def download_argv(requirement: str, wheels: Path, constraints: Path, python: str) -> list[str]:
    """pip's words for the wheels that another Python would get on this machine."""
    version = ["--only-binary=:all:", f"--python-version={python}"]
    return ["download", "--quiet", *version, f"--constraint={constraints}", f"--dest={wheels}", requirement]


def make_pip(path: Path) -> str:
    """An environment with what builds wheels."""
    if not (path / "ready").exists():
        run([PYTHON, "-m", "venv", "--clear", str(path)])
        run([f"{path}/bin/pip", "install", "--quiet", "wheel", "hatchling"])
        (path / "ready").touch()
    return f"{path}/bin/pip"


def link_tree(source: Path, target: Path) -> None:
    """Give the hosts large files without copying them, where the file system allows it."""
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        run(["cp", "--archive", "--link", str(source), str(target)])
    except BedError:
        shutil.rmtree(target, ignore_errors=True)
        run(["cp", "--archive", str(source), str(target)])
    target.chmod(0o755)


def run(argv: list[str]) -> None:
    result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LIMIT)
    if result.returncode:
        raise BedError(f"{' '.join(argv)} failed:\n{result.stdout}{result.stderr}")
