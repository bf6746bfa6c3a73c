"""The tests, as upstream publishes them: ``e2e.test``, and ginkgo to run it in several processes.

They are built and kept as the components are (``pinnace.components``), beside them in the store. But they are not in
the manifest: no user fetches them.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.components import build as building
from pinnace.components.fetch import fetch_one
from pinnace.components.manifest import Build, Component, Release, architecture, manifest
from pinnace.components.store import ComponentState, ComponentStore, Origin, user_root
from pinnace.errors import ComponentError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pinnace.components.events import Reporter
    from testbed.images.recipes import Recipe

LOCK = Path(__file__).parent / "lock"
TESTS = "e2e.test"
PACKAGES = {TESTS: "k8s.io/kubernetes/test/e2e", "ginkgo": "github.com/onsi/ginkgo/v2/ginkgo"}


def suite() -> Component:
    """The suite of the Kubernetes that pinnace runs."""
    kubernetes = manifest()["kubernetes"]
    build = Build(packages=PACKAGES, gib=kubernetes.build.gib, stamps=kubernetes.build.stamps)
    return Component(name="conformance", version=kubernetes.version, release=Release(), build=build, lock=LOCK)


def check_images(directory: Path, recipes: Iterable[Recipe]) -> None:
    """The suite says which images it takes. One of ours that is not among them has an old name or tag."""
    asked = subprocess.run(
        [directory / TESTS, "--list-images"], check=True, capture_output=True, text=True, timeout=120
    )
    if unknown := {recipe.reference for recipe in recipes} - set(asked.stdout.split()):
        raise ComponentError(
            f"the suite of Kubernetes {suite().version} does not use {', '.join(sorted(unknown))}",
            hint="Bring testbed/images/conformance.py up to date, then run `python -m conformance.locking`.",
        )


def build_argv(component: Component, binary: str, output: Path) -> list[str]:
    """The command that builds one of the two; it leaves the machine to others."""
    command = ["go", "test", "-c", "-vet=off"] if binary == TESTS else ["go", "build"]
    return ["nice", "-n", "10", *command, "-p", "2", *building.build_argv(component, binary, output)[2:]]


def ensure_suite(reporter: Reporter) -> Path:
    """The directory with both programs, built if it is not in the store."""
    component, arch = suite(), architecture()
    store = ComponentStore(user_root(), arch)

    def source(target: Path) -> tuple[Origin, str]:
        environment = building.build_environment(component, arch, dict(os.environ))
        go = building.check_toolchain(component, environment)
        building.check_space(component, environment)
        for binary in component.binaries:
            reporter.step(component.label, f"building {binary}")
            building.run(component, build_argv(component, binary, target / binary), environment, reporter)
        return Origin.BUILD, go

    if store.inspect(component).state is ComponentState.INSTALLED:
        return store.directory(component)
    return fetch_one(component, store, lambda _, target: source(target), reporter).path
