"""The bridge's image, built from Debian's packages and PyPI's wheels, without a registry or a daemon.

    .venv/bin/python deploy/image.py bridge.tar

An OCI layout with pinnace in it, for `pinnace image load`, `ctr images import` or `skopeo copy oci-archive:…`.
"""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path

from pinnace import __version__
from testbed.images.build import build_image
from testbed.images.entries import Entry, Kind, file
from testbed.images.oci import Command
from testbed.images.recipes import BASE, PYTHON, LayerRecipe, Recipe
from testbed.software import make_wheels
from testbed.state import Directories

PROJECT = Path(__file__).parents[1]
SITE = "usr/lib/python3/dist-packages"
START = "#!/usr/bin/python3\nfrom pinnace.cli import main\nmain()\n"


class Product(Recipe):
    @property
    def reference(self) -> str:
        return f"localhost/pinnace/{self.name}:{self.version}"


def installed(wheels: Path) -> list[Entry]:
    """What pip would unpack."""
    found: dict[str, Entry] = {}
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if not member.is_dir():
                    found[member.filename] = Entry(
                        path=f"{SITE}/{member.filename}", kind=Kind.FILE, mode=0o644, content=archive.read(member)
                    )
    return list(found.values())


def build() -> Path:
    """Return the path of the image, in the cache of the test images."""
    wheels = make_wheels(PROJECT, Directories().cache, "[s3]")
    entries = (*installed(wheels), file("usr/bin/pinnace", START, mode=0o755))
    python = LayerRecipe(packages=(*PYTHON.packages, "ca-certificates"), exclude=("debconf", "openssl"))
    product = Product(
        name="bridge",
        version=__version__,
        layers=(BASE, python, LayerRecipe(entries=entries)),
        command=Command(entrypoint=("pinnace", "bridge", "--in-pod")),
    )
    return build_image("bridge", recipes={"bridge": product})


if __name__ == "__main__":
    shutil.copy(build(), sys.argv[1])
