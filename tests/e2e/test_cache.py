"""Unpacked images stay on a host for the next cluster, and nothing else does; however a cluster ends."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from e2e.conftest import Kubectl
from e2e.left import assert_nothing_left, cached, has_job
from testbed.waiting import wait_until
from unit.images.archives import with_environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from e2e.conftest import User

pytestmark = [pytest.mark.bed, pytest.mark.timeout(600)]

HOST = "n3"
SECRET = "left-by-a-pod-of-the-first-cluster"  # noqa: S105
IMAGE = "localhost/pinnace-test/busybox:1"
POD = """
apiVersion: v1
kind: Pod
metadata: {name: work}
spec:
  restartPolicy: Never
  containers:
    - name: main
      image: "%(image)s"
      imagePullPolicy: %(policy)s
      command: %(command)s
"""


@pytest.fixture
def bob(bob: User) -> Iterator[User]:
    """With no unpacked images on the host."""
    prune(bob)
    yield bob
    prune(bob)


def prune(user: User) -> str:
    message = user.run("srun", "-w", HOST, "pinnace", "image", "prune").stderr
    assert cached(user, HOST) == []
    return message


def manifest(user: User, command: str, *, image: str = IMAGE, policy: str = "IfNotPresent") -> str:
    words = json.dumps(["sh", "-c", command])
    return user.write("cached.yaml", POD % {"image": image, "policy": policy, "command": words})


def run(user: User, name: str, *options: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
    return user.pinnace("run", "-w", HOST, *options, name, code=code)


def snapshots(user: User) -> dict[str, int]:
    """The unpacked layers on the host, by path, with their inodes."""
    layers = "containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/*/fs"
    return {str(layer): layer.stat().st_ino for path in cached(user, HOST) for layer in path.glob(layers)}


def test_the_next_cluster_unpacks_nothing_and_knows_nothing(bob: User) -> None:
    first = run(bob, manifest(bob, f"echo {SECRET} | tee /file"), "--image", "busybox.tar")
    assert SECRET in first.stdout
    before = snapshots(bob)
    assert len(before) == 2, "one layer of the image, and one of the sandbox's"
    assert_nothing_left(bob)
    [path] = cached(bob, HOST)
    found = subprocess.run(["grep", "-rlaF", SECRET, path], capture_output=True, text=True, check=False, timeout=60)
    assert found.stdout == "", "what pods wrote is gone"
    bob.pinnace("up", "-w", HOST, "--name", "second")
    bob.pinnace("kubectl", "apply", "-f", manifest(bob, "true", policy="Never"))
    wait_until("the refusal, because no name is remembered", lambda: reason(bob) == "ErrImageNeverPull", limit=60)
    bob.pinnace("kubectl", "run", "again", f"--image={IMAGE}", "--restart=Never", "--", "true")
    wait = ["wait", "pod/again", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=90s"]
    bob.pinnace("kubectl", *wait)
    impatient = json.dumps({"spec": {"terminationGracePeriodSeconds": 0}})
    still = ["run", "still", f"--image={IMAGE}", f"--overrides={impatient}", "--", "sleep", "1000"]
    bob.pinnace("kubectl", *still)  # its container still runs when the cluster ends
    bob.pinnace("kubectl", "wait", "pod/still", "--for=condition=Ready", "--timeout=90s")
    bob.pinnace("down", "second")
    assert snapshots(bob) == before
    assert_nothing_left(bob)


def reason(user: User) -> str:
    """Why the pod does not start."""
    pod = Kubectl(user=user, cluster="second").json("get", "pod", "work")
    [status] = pod["status"].get("containerStatuses") or [{}]
    return str(status.get("state", {}).get("waiting", {}).get("reason"))


def test_a_newer_image_of_the_same_name_is_what_the_next_cluster_runs(bob: User, tmp_path: Path) -> None:
    """Also where the old one lies unpacked."""
    name = "localhost/images/renewed:1"
    for version in ("one", "two"):
        tar = with_environment(bob.home / "busybox.tar", tmp_path / "renewed.tar", VERSION=version)
        shutil.copyfile(tar, bob.home / "renewed.tar")
        bob.pinnace("image", "load", "renewed.tar", "--as", name)
        assert f"version {version}" in run(bob, manifest(bob, "echo version $VERSION", image=name)).stdout
    assert len(snapshots(bob)) == 2, "the two have the same layer"
    bob.pinnace("image", "rm", name)


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=[pytest.mark.stress, pytest.mark.timeout(1200)])])
def test_clusters_killed_at_any_moment_do_no_harm_to_the_next(bob: User, kills: int) -> None:
    name = manifest(bob, "echo it works")
    moments = random.Random(7)  # noqa: S311 - the same moments in every run
    for number in range(kills):
        argv = ["pinnace", "run", "-w", HOST, "--image", "busybox.tar", name]
        with bob.bed.popen(argv, user="bob", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            wait_until("its job", partial(has_job, bob), limit=60)
            time.sleep(0.5 + 8.5 * (number + moments.random()) / kills)
            bob.run("scancel", "--me", "--full", "--signal=KILL")
            process.communicate(timeout=120)
        result = run(bob, name, "--image", "busybox.tar")
        assert "it works" in result.stdout
        assert_nothing_left(bob)
        assert len(cached(bob, HOST)) == 1


def test_what_a_site_cleans_up_in_tmp_does_no_harm(bob: User) -> None:
    name = manifest(bob, "echo it works")
    run(bob, name, "--image", "busybox.tar")
    victims = [path for path in cached(bob, HOST)[0].rglob("*") if path.is_file() and "snapshots" in path.parts]
    assert victims
    for victim in victims:
        victim.unlink()
    assert "it works" in run(bob, name, "--image", "busybox.tar").stdout
    assert_nothing_left(bob)


def test_two_clusters_at_once_on_one_host_have_their_own(bob: User) -> None:
    for name in ("first", "second"):
        bob.pinnace("up", "-w", HOST, "--mem", "1500M", "--name", name, "--image", "busybox.tar")
    in_use = bob.run("srun", "-w", HOST, "--mem=150M", "pinnace", "image", "prune", code=1)
    assert "is in use" in in_use.stderr
    for name in ("first", "second"):
        bob.pinnace("kubectl", "--name", name, "run", "work", f"--image={IMAGE}", "--restart=Never", "--", "true")
        wait = ["wait", "pod/work", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=90s"]
        bob.pinnace("kubectl", "--name", name, *wait)
        bob.pinnace("down", name)
    assert_nothing_left(bob)
    assert len(cached(bob, HOST)) == 2
    assert "MiB removed" in prune(bob)


def test_it_can_be_switched_off(bob: User) -> None:
    name = manifest(bob, "echo it works")
    words = ["pinnace", "run", "-w", HOST, "--image", "busybox.tar", name]
    assert "it works" in bob.run("env", "PINNACE_IMAGE_CACHE=0", *words).stdout
    assert cached(bob, HOST) == []
    wrong = bob.run("env", "PINNACE_IMAGE_CACHE=here", *words, code=1)
    assert "PINNACE_IMAGE_CACHE is 'here'" in wrong.stderr
    assert_nothing_left(bob)
