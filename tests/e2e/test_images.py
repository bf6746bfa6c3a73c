"""Images: loaded once, for every node of every cluster, whatever the pull policy."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from testbed.waiting import wait_until
from unit.images.archives import docker_tar, oci_tar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from e2e.conftest import Kubectl, User

pytestmark = pytest.mark.bed

BOTH = """
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: %(name)s}
spec:
  selector: {matchLabels: {app: %(name)s}}
  template:
    metadata: {labels: {app: %(name)s}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: "%(image)s", imagePullPolicy: %(policy)s, command: %(command)s}]
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: %(name)s}
spec:
  restartPolicy: Never
  containers: [{name: main, image: "%(image)s", command: [/binary]}]
"""
LARGE = 300 << 20


@pytest.fixture
def archive(cluster: Kubectl, real_store: Path, tmp_path: Path) -> Callable[[str], str]:
    """Make an image in alice's home whose only program, ``pause``, sleeps for ever; gives the file's name."""

    def make(name: str, more: bytes = b"") -> str:
        pause = next(real_store.glob("pause/*/*/pause")).read_bytes()
        # A program may have any bytes after its end. To compress hundreds of MB takes longer than all the rest.
        tar = oci_tar(tmp_path / "image.tar", name, pause + more, level=0)
        shutil.copyfile(tar, cluster.user.home / "image.tar")
        return "image.tar"

    return make


def load(user: User, file: str, *options: str) -> str:
    return user.pinnace("image", "load", file, *options).stderr


def run_on_both(cluster: Kubectl, name: str, image: str, *, policy: str = "IfNotPresent", limit: int = 60) -> None:
    cluster.apply(BOTH % {"name": name, "image": image, "policy": policy, "command": "[/binary]"})
    cluster("rollout", "status", f"daemonset/{name}", f"--timeout={limit}s", timeout=limit + 60)
    pods = cluster.json("get", "pods", "-l", f"app={name}")["items"]
    assert {pod["spec"]["nodeName"] for pod in pods} == {"n1", "n2"}
    cluster("delete", "daemonset", name, "--wait=false")


@pytest.mark.parametrize("policy", ["IfNotPresent", "Always"])
@pytest.mark.parametrize("registry", ["localhost", "docker.io", "registry.invalid:5000"])
def test_what_is_loaded_while_a_cluster_runs_runs_on_all_its_nodes(
    cluster: Kubectl, archive: Callable[[str], str], registry: str, policy: str
) -> None:
    image = f"{registry}/images/{policy.lower()}:1"
    assert f"loaded {image}" in load(cluster.user, archive(image), "--name", cluster.cluster)
    run_on_both(cluster, f"{policy.lower()}-{registry[0]}", image, policy=policy)


def test_with_policy_always_a_newer_image_of_the_same_name_is_taken(
    cluster: Kubectl, archive: Callable[..., str]
) -> None:
    image = "localhost/images/moving:latest"
    digests = set()
    for version in (b"1", b"2"):
        load(cluster.user, archive(image, version))
        cluster.apply(POD % {"name": f"moving-{version.decode()}", "image": image})
        cluster("wait", "--for=condition=Ready", f"pod/moving-{version.decode()}", "--timeout=120s")
        [status] = cluster.json("get", "pod", f"moving-{version.decode()}")["status"]["containerStatuses"]
        digests.add(status["imageID"])
        cluster("delete", "pod", f"moving-{version.decode()}", "--now", "--wait=false")
    assert len(digests) == 2


def test_a_large_image_runs_on_both_nodes(cluster: Kubectl, archive: Callable[..., str]) -> None:
    image = "localhost/images/large:1"
    load(cluster.user, archive(image, os.urandom(LARGE)))
    run_on_both(cluster, "large", image, limit=180)
    blobs = cluster.user.home / ".local/share/pinnace/images/registry/docker/registry/v2/blobs"
    before = {path: path.stat().st_mtime_ns for path in blobs.rglob("data") if path.stat().st_size > LARGE // 2}
    assert len(before) == 1
    load(cluster.user, "image.tar")
    assert before == {path: path.stat().st_mtime_ns for path in before}, "what is there is not copied again"
    cluster.user.pinnace("image", "rm", image)
    (cluster.user.home / "image.tar").unlink()


def test_what_docker_saves_is_loaded(cluster: Kubectl, tmp_path: Path) -> None:
    shutil.copyfile(docker_tar(tmp_path / "saved.tar", tags=["saved:1"]), cluster.user.home / "saved.tar")
    load(cluster.user, "saved.tar")
    cluster.apply(POD % {"name": "saved", "image": "saved:1"})

    def created() -> bool:
        """There is no program in it: that the runtime says so means that it has the image."""
        [status] = cluster.json("get", "pod", "saved")["status"].get("containerStatuses") or [{}]
        state = status.get("state", {})
        text = json.dumps(state)
        assert "ImagePull" not in text, text
        return "/binary" in text and "no such file" in text

    wait_until("the runtime to look for the program", created, limit=60)
    cluster("delete", "pod", "saved", "--now")


def test_the_list_names_every_image(cluster: Kubectl, archive: Callable[[str], str]) -> None:
    load(cluster.user, archive("localhost/images/listed:1"))
    rows = json.loads(cluster.user.pinnace("image", "list", "-o", "json").stdout)
    [row] = [row for row in rows if row["name"] == "localhost/images/listed:1"]
    assert row["digest"].startswith("sha256:")
    assert row["size"] > 0
    assert "localhost/pinnace-test/busybox:1" in {row["name"] for row in rows}, "--image means the same"
    cluster.user.pinnace("image", "rm", "localhost/images/listed:1")
    assert "localhost/images/listed:1" not in cluster.user.pinnace("image", "list", "-o", "name").stdout.split()


def test_what_is_loaded_before_a_cluster_is_there_for_it(bob: User) -> None:
    load(bob, "busybox.tar")
    manifest = POD.replace("/binary", "sh, -c, 'echo loaded before'") % {
        "name": "before",
        "image": "localhost/pinnace-test/busybox:1",
    }
    result = bob.pinnace("run", bob.write("before.yaml", manifest))
    assert "loaded before" in result.stdout


def test_images_are_their_users_alone(cluster: Kubectl) -> None:
    bed = cluster.user.bed
    assert bed.run(["ls", "/home/alice/.local/share/pinnace/images"], user="bob", check=False).returncode
    for host in ("n1", "n2"):
        answer = bed.run(["curl", "-sS", "http://127.0.0.1:10230/v2/"], user="alice", on=host, check=False)
        assert answer.returncode == 7, "nothing listens there on the host itself"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["load", "nothing.tar"], "there is no file nothing.tar"),
        (["load", "text"], "text is no image, or is damaged"),
        (["load", "cut.tar"], "cut.tar is"),
        (["load", "."], "has no index.json"),
        (["load", "busybox.tar", "--as", "NOT A NAME"], "is no name of an image"),
        (["load", "busybox.tar", "--name", "nowhere"], "there is no cluster 'nowhere'"),
        (["rm", "localhost/not/there:1"], "there is no image localhost/not/there:1"),
    ],
)
def test_bad_input_is_answered_and_leaves_nothing(bob: User, words: list[str], message: str) -> None:
    bob.write("text", "hello\n")
    (bob.home / "cut.tar").write_bytes((bob.home / "busybox.tar").read_bytes()[:1_000_000])
    before = bob.pinnace("image", "list").stdout
    result = bob.pinnace("image", *words, code=None)
    assert result.returncode in {1, 2}
    assert message in result.stderr
    assert bob.pinnace("image", "list").stdout == before
    assert not list((bob.home / ".local/share/pinnace/images").glob(".staging-*"))


def test_an_image_that_is_nowhere_is_answered_in_the_registrys_words(cluster: Kubectl) -> None:
    """Also under a name of which other images were loaded."""
    cluster.apply(POD % {"name": "nowhere", "image": "localhost/images/nowhere:1"})

    def refused() -> bool:
        events = cluster("get", "events", "--field-selector", "involvedObject.name=nowhere", "-o", "json")
        words = [event["message"] for event in json.loads(events)["items"]]
        return any("localhost/images/nowhere:1" in text and "failed to" in text for text in words)

    wait_until("the refusal", refused, limit=60)
    cluster("delete", "pod", "nowhere", "--now")
