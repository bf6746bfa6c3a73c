"""The suite and its images belong to the Kubernetes that pinnace runs."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.running import Choice, objects, suite_argv
from conformance.suite import build_argv, suite
from pinnace.components.manifest import manifest
from testbed.images.compiling import compile_program
from testbed.images.conformance import RECIPES
from testbed.images.golang import GoFile, GoProgram, read_lock
from testbed.images.golang import build_argv as image_argv


@pytest.mark.parametrize("go_mod", [(suite().lock / "go.mod").read_text(), read_lock("kubernetes").go_mod])
def test_the_locks_are_of_the_pinned_version(go_mod: str) -> None:
    """Otherwise: python -m conformance.locking."""
    version = manifest()["kubernetes"].version
    assert f"\tk8s.io/kubernetes v{version} " in go_mod
    assert f"k8s.io/client-go => k8s.io/client-go v0.{version.partition('.')[2]}\n" in go_mod


def test_the_suite_is_no_component() -> None:
    assert suite().name not in manifest()


def test_the_tests_and_ginkgo_are_built_as_the_components_are() -> None:
    tests, ginkgo = (build_argv(suite(), binary, Path("out")) for binary in suite().binaries)
    assert tests[3:7] == ["go", "test", "-c", "-vet=off"]
    assert ginkgo[3:5] == ["go", "build"]
    for argv in (tests, ginkgo):
        assert {"-trimpath", "-mod=readonly", "-buildvcs=false"} <= set(argv)
        assert any(f"version.gitVersion=v{suite().version}" in word for word in argv)


def test_the_two_parts_are_all_conformance_tests() -> None:
    parallel, serial = Choice(processes=3).parts
    assert (parallel.labels, parallel.processes) == ("Conformance && !Serial", 3)
    assert (serial.labels, serial.processes) == ("Conformance && Serial", 1)


def test_the_choice_goes_to_ginkgo_and_the_rest_to_the_tests() -> None:
    choice = Choice(focus="DNS", skip="slow")
    argv = suite_argv(choice.parts[0], choice, nodes=2, hours=1)
    split = argv.index("--")
    assert {"--focus=DNS", "--skip=slow", "--procs=4"} <= set(argv[:split])
    assert "--report-dir=/results/parallel" in argv[split:]
    assert not [word for word in suite_argv(choice.parts[0], Choice(), nodes=2, hours=1) if "--focus" in word]


def test_no_test_can_drive_the_suite_away() -> None:
    part = Choice().parts[1]
    pod = objects(part, ["true"], version="1", arch="amd64", results="/home/alice/x")[-1]
    json.dumps(pod)
    assert pod["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert pod["spec"]["priorityClassName"] == "system-node-critical"


def test_images_have_upstreams_names() -> None:
    for recipe in RECIPES.values():
        assert re.fullmatch(r"registry\.k8s\.io/(e2e-test-images/)?[a-z-]+:[0-9][0-9.-]*", recipe.reference)


def test_what_comes_from_modules_has_its_place() -> None:
    taken = [one for recipe in RECIPES.values() for layer in recipe.layers for one in layer.modules]
    assert {type(one) for one in taken} == {GoFile, GoProgram}
    assert not [one.path for one in taken if one.path.startswith(("/", "bin/", "sbin/"))]
    assert {"-trimpath", "-mod=readonly"} <= set(image_argv("example.org/package", "program"))


@pytest.mark.parametrize(("variable", "shell"), [("plain_1", "busybox"), ("my.name", "bash"), ("1st", "bash")])
def test_the_shell_of_busybox_keeps_the_names_that_kubernetes_allows(tmp_path: Path, variable: str, shell: str) -> None:
    """Stand-ins for the two shells tell which of them was taken."""
    for name in ("busybox", "bash"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*"\n')
        (tmp_path / name).chmod(0o755)
    [program] = RECIPES["busybox:1.37.0-1"].layers[-1].programs
    entry = compile_program(replace(program, source=program.source.replace("/usr/bin", str(tmp_path))), work=tmp_path)
    assert isinstance(entry.content, bytes)
    (tmp_path / "sh").write_bytes(entry.content)
    (tmp_path / "sh").chmod(0o755)
    said = subprocess.run(
        [tmp_path / "sh", "-c", "x"], env={variable: "1"}, check=True, capture_output=True, text=True, timeout=10
    )
    assert said.stdout == f"{shell} -c x\n"
