"""Real registries: asked for what was not loaded, with the pod's own secret. The bed's host `outside` has one."""

from __future__ import annotations

import base64
import json
import shutil
from typing import TYPE_CHECKING

import pytest

from pinnace.controlplane.pki import Authority, CertificateSubject
from pinnace.images import registry
from pinnace.images.store import ImageStore
from testbed.waiting import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from e2e.conftest import User

pytestmark = pytest.mark.bed

ADDRESS = "198.51.100.10"
HOST = f"{ADDRESS}:5443"
IMAGE = f"{HOST}/private.example/team/busybox:1"
PASSWORD = "not-to-be-logged"  # noqa: S105
HASH = "$2b$04$zssD9f3zHx9BrUx6qrkAz.AjsC6jEVFQONA5BmQTL95qTFlmzFfO."
JOB = """
apiVersion: v1
kind: Secret
metadata: {name: login}
type: kubernetes.io/dockerconfigjson
data: {.dockerconfigjson: %(login)s}
---
apiVersion: batch/v1
kind: Job
metadata: {name: work}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      imagePullSecrets: %(secrets)s
      containers: [{name: main, image: "%(image)s", command: [echo, from the real registry]}]
"""


@pytest.fixture(scope="module")
def outside(bob: User, real_store: Path) -> Iterator[None]:
    """A registry with TLS and passwords; its certificate is from an authority that bob trusts."""
    directory = bob.home / "registry"
    shutil.rmtree(directory, ignore_errors=True)
    store = ImageStore(directory)
    store.load(bob.home / "busybox.tar", "private.example/team/busybox:1")
    authority = Authority.create(directory)
    authority.issue(CertificateSubject(file="outside", common_name="outside", addresses=(ADDRESS,)))
    shutil.copyfile(directory / "ca.crt", bob.home / "ca.crt")
    (bob.home / "ca.crt").chmod(0o644)
    (directory / "passwords").write_text(f"user:{HASH}\n")
    here = "/home/bob/registry"
    tls = {"certificate": f"{here}/outside.crt", "key": f"{here}/outside.key"}
    config = registry.config(f"{here}/registry", addr=HOST, tls=tls) | {
        "auth": {"htpasswd": {"realm": "outside", "path": f"{here}/passwords"}},
    }
    config["storage"]["maintenance"]["readonly"]["enabled"] = False
    (directory / "config.json").write_text(json.dumps(config))
    binary = next(real_store.glob("distribution/*/*/registry")).relative_to(real_store.parent)
    argv = registry.argv(f"/opt/pinnace/share/pinnace/{binary}", f"{here}/config.json")
    with bob.bed.popen(argv, on="outside", user="root") as process:
        url = f"https://{HOST}/v2/"
        probe = ["curl", "-sS", "--cacert", "/home/bob/ca.crt", "-o", "/dev/null", url]
        wait_until("the registry", lambda: not bob.bed.run(probe, user="bob", check=False).returncode, limit=60)
        yield
        process.terminate()
    shutil.rmtree(directory)


def login() -> str:
    token = base64.b64encode(f"user:{PASSWORD}".encode()).decode()
    return json.dumps({"auths": {HOST: {"auth": token}}})


def run(bob: User, *options: str, secrets: str, image: str = IMAGE) -> subprocess.CompletedProcess[str]:
    secret = base64.b64encode(login().encode()).decode()
    name = bob.write("pull.yaml", JOB % {"login": secret, "secrets": secrets, "image": image})
    return bob.run("env", "SSL_CERT_FILE=/home/bob/ca.crt", "pinnace", "run", *options, name, code=None)


@pytest.mark.usefixtures("outside")
def test_a_pull_without_a_secret_is_refused_in_the_registrys_words(bob: User) -> None:
    result = run(bob, secrets="[]")
    assert result.returncode == 1
    assert IMAGE in result.stderr
    assert "401 Unauthorized" in result.stderr or "no basic auth credentials" in result.stderr


@pytest.mark.usefixtures("outside")
def test_a_pull_secret_works_beside_loaded_images_and_is_logged_nowhere(bob: User) -> None:
    """The node's own registry is asked first, because another image of that name was loaded; it has not this one."""
    bob.pinnace("image", "load", "busybox.tar", "--as", f"{HOST}/loaded:1")
    result = run(bob, "--retain", "--name", "secret", secrets="[{name: login}]")
    assert result.returncode == 0, result.stderr
    assert "from the real registry" in result.stdout
    logs = bob.home / ".local/share/pinnace/clusters/secret/logs"
    token = base64.b64encode(f"user:{PASSWORD}".encode())
    for log in logs.rglob("*.log"):
        content = log.read_bytes()
        assert PASSWORD.encode() not in content, log
        assert token not in content, log
    shutil.rmtree(logs.parent)
    bob.pinnace("image", "rm", f"{HOST}/loaded:1")


@pytest.mark.usefixtures("outside")
def test_what_is_pushed_is_pulled_by_the_next_cluster(bob: User) -> None:
    bob.pinnace("image", "load", "busybox.tar")
    image = f"{HOST}/pushed/busybox:2"
    bob.write("login.json", login(), mode=0o600)
    shutil.chown(bob.home / "login.json", bob.uid)
    variables = ["SSL_CERT_FILE=/home/bob/ca.crt", "REGISTRY_AUTH_FILE=/home/bob/login.json"]
    pushed = bob.run("env", *variables, "pinnace", "image", "push", "localhost/pinnace-test/busybox:1", image)
    assert pushed.stdout.startswith(f"{HOST}/pushed/busybox@sha256:")
    (bob.home / "login.json").unlink()
    result = run(bob, secrets="[{name: login}]", image=image)
    assert result.returncode == 0, result.stderr
    assert "from the real registry" in result.stdout
