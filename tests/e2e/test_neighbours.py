"""Several clusters on the same hosts at once, of one user and of another: none sees or touches another."""

from __future__ import annotations

import contextlib
import json
import shutil
from typing import TYPE_CHECKING

import pytest

from e2e.conftest import Kubectl
from e2e.left import no_process
from testbed.plan import GROUPS

if TYPE_CHECKING:
    from e2e.conftest import User

pytestmark = [pytest.mark.bed, pytest.mark.timeout(600)]

# The same names and selectors in all of them; only what they say differs.
WEB = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80}]
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  nodeName: n3
  terminationGracePeriodSeconds: 0
  containers:
    - name: web
      image: localhost/pinnace-test/busybox:1
      command: [sh, -c, "mkdir -p /www && echo %s > /www/index.html && exec httpd -f -h /www"]
      readinessProbe: {httpGet: {path: /, port: 80}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: groups, hostPath: {path: /home/groups}}]
  containers:
    - name: main
      image: localhost/pinnace-test/nettools:1
      command: [sleep, "3600"]
      volumeMounts: [{name: groups, mountPath: /groups}]
"""
PLACES = {
    "one": ["-w", "n3"],
    "two": ["-N", "2", "-w", "n2,n3", "--network", "172.20.0.0/20"],
    "three": ["-w", "n3"],
}


def answers(kubectl: Kubectl) -> str:
    """What the Service says to a pod of the same cluster."""
    address = kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
    return kubectl("exec", "client", "--", "curl", "-sS", "-m", "20", f"http://{address}/").strip()


def groups(kubectl: Kubectl) -> list[str]:
    """The groups whose directories a pod can read."""
    look = "for group in /groups/*; do ls $group > /dev/null 2>&1 && echo ${group##*/}; done; true"
    return kubectl("exec", "client", "--", "sh", "-c", look).split()


def test_three_clusters_of_two_users_share_a_host_and_nothing_else(alice: User, bob: User) -> None:
    shutil.copy(alice.home / "nettools.tar", bob.home)
    images = ["--image", "busybox.tar", "--image", "nettools.tar"]
    clusters = {name: Kubectl(user=alice if name == "three" else bob, cluster=name) for name in PLACES}
    with contextlib.ExitStack() as stack:
        for name, kubectl in clusters.items():
            stack.callback(kubectl.user.pinnace, "down", name, code=None)
            kubectl.user.pinnace("up", "--name", name, "--mem", "1800M", *images, *PLACES[name], timeout=180)
            kubectl.apply(WEB % name)
        for name, kubectl in clusters.items():
            kubectl("wait", "--for=condition=Ready", "pod/web", "pod/client", "--timeout=90s")
            assert answers(kubectl) == name
            assert groups(kubectl) == [group.name for group in GROUPS if kubectl.user.name in group.members]
            assert len(kubectl.json("get", "nodes")["items"]) == (2 if name == "two" else 1)
            assert len(kubectl.json("get", "pods")["items"]) == 2
        assert clusters["two"]("get", "pod", "web", "-o", "jsonpath={.status.podIP}").startswith("172.20.")
        names = {row["name"] for row in json.loads(bob.pinnace("list", "-o", "json").stdout)}
        assert names == {"one", "two"}, "a user sees her own clusters alone"

        bob.pinnace("down", "one")
        assert answers(clusters["two"]) == "two"
        assert answers(clusters["three"]) == "three"
        bob.pinnace("down", "two")
        assert answers(clusters["three"]) == "three"
        assert no_process(bob, "n3")
