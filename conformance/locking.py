"""For maintainers: write the locks of the suite and of its images, after a change of Kubernetes' version.

    python -m conformance.locking

The versions of the images come first: ``e2e.test --list-images`` prints what a suite wants, and
``testbed/images/conformance.py`` has to say the same. A run checks it.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from conformance.suite import LOCK, PACKAGES, TESTS, suite
from pinnace.components.lock import GO, staging_replaces
from testbed.images.conformance import RECIPES
from testbed.images.golang import LOCKS, GoProgram

KUBERNETES = "k8s.io/kubernetes"
ENVIRONMENT = {"GOFLAGS": "-mod=mod", "GOWORK": "off"}


def go(directory: Path, *words: str) -> str:
    environment = dict(os.environ) | ENVIRONMENT
    return subprocess.run(
        ["go", *words], cwd=directory, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def begin(directory: Path, module: str, *, replaces: str = "") -> None:
    """An empty module, to which the packages are added."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "go.sum").unlink(missing_ok=True)
    (directory / "go.mod").write_text(f"module {module}\n\ngo {GO}\n")
    if replaces:
        found = json.loads(go(directory, "mod", "download", "-json", f"{KUBERNETES}@v{replaces}"))
        text = staging_replaces(Path(found["GoMod"]).read_text(), replaces)
        (directory / "go.mod").write_text(f"module {module}\n\ngo {GO}\n{text}")


def lock_suite(version: str) -> None:
    """The tests decide about ginkgo's version."""
    begin(LOCK, "pinnace.invalid/build/conformance", replaces=version)
    go(LOCK, "get", "-t", f"{PACKAGES[TESTS]}@v{version}")
    ginkgo = go(LOCK, "list", "-m", "-f", "{{.Version}}", PACKAGES["ginkgo"].removesuffix("/ginkgo")).strip()
    go(LOCK, "get", "-tool", f"{PACKAGES['ginkgo']}@{ginkgo}")


def lock_images(version: str) -> None:
    """Images of Kubernetes' own module have its version; the others have the version that their tag says."""
    begin(LOCKS / "kubernetes", "testbed.invalid/images/kubernetes", replaces=version)
    for name, recipe in RECIPES.items():
        for program in (one for layer in recipe.layers for one in layer.modules if isinstance(one, GoProgram)):
            if program.package.startswith(f"{KUBERNETES}/"):
                go(LOCKS / "kubernetes", "get", "-tool", f"{program.package}@v{version}")
                continue
            tag = recipe.version.partition("-")[0]
            wanted = f"v0.{tag.partition('.')[2]}" if program.package.startswith("k8s.io/") else f"v{tag}"
            directory = LOCKS / name.partition(":")[0]
            begin(directory, f"testbed.invalid/images/{directory.name}")
            go(directory, "get", "-tool", f"{program.package}@{wanted}")


if __name__ == "__main__":
    lock_suite(suite().version)
    lock_images(suite().version)
