"""All the ways in which a cluster can end, or lose a part: nothing is left, and nothing waits for ever."""

from __future__ import annotations

import json
import random
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from e2e.conftest import Kubectl
from e2e.left import assert_nothing_left, has_job
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from e2e.conftest import User

pytestmark = pytest.mark.bed

SLEEP = """
apiVersion: batch/v1
kind: Job
metadata: {name: sleep}
spec:
  completions: 2
  parallelism: 2
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: "localhost/pinnace-test/busybox:1", command: [sleep, "600"]}]
"""
SURVIVOR = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: survivor}
spec:
  replicas: 1
  selector: {matchLabels: {app: survivor}}
  template:
    metadata: {labels: {app: survivor}}
    spec:
      terminationGracePeriodSeconds: 0
      affinity:
        nodeAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - {weight: 100, preference: {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [n3]}]}}
      tolerations:
        - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
        - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
      containers: [{name: main, image: "localhost/pinnace-test/busybox:1", command: [sleep, "600"]}]
"""


@pytest.mark.parametrize("times", [4, pytest.param(50, marks=[pytest.mark.stress, pytest.mark.timeout(2400)])])
def test_a_job_cancelled_at_any_moment_leaves_nothing(bob: User, times: int) -> None:
    name = bob.write("sleep.yaml", SLEEP)
    moments = random.Random(4)  # noqa: S311 - the same moments in every run
    for number in range(times):
        with bob.bed.popen(["pinnace", "run", "-N", "2", "--image", "busybox.tar", name], user="bob") as process:
            wait_until("its job", partial(has_job, bob), limit=60)
            time.sleep(8 * (number + moments.random()) / times)
            bob.run("scancel", "--me")
            _, messages = process.communicate(timeout=60)
        assert process.returncode != 0
        assert "Traceback" not in messages, messages
        assert_nothing_left(bob)


def test_a_batch_cluster_is_ended_by_down_from_another_process(bob: User) -> None:
    bob.pinnace("up", "-N", "2", "--name", "batch", "--image", "busybox.tar")
    listing = json.loads(bob.pinnace("list", "-o", "json").stdout)
    assert [(row["name"], row["state"], row["nodes"]) for row in listing] == [("batch", "running", 2)]
    contexts = bob.pinnace("kubectl", "config", "get-contexts", "-o", "name").stdout.split()
    assert contexts == ["pinnace-batch"]
    again = bob.pinnace("up", "--name", "batch", code=1)
    assert "you have a cluster called 'batch' already" in again.stderr
    bob.pinnace("down", "batch")
    assert_nothing_left(bob)
    assert "pinnace-batch" not in (bob.home / ".kube" / "config").read_text()
    assert not bob.pinnace("list", "-o", "name").stdout


@pytest.mark.timeout(400)
def test_a_host_that_dies_takes_its_node_along_and_not_the_cluster(bob: User) -> None:
    bob.pinnace("up", "-w", "n2,n3", "-N", "2", "--name", "loss", "--image", "busybox.tar")
    try:
        bob.pinnace("kubectl", "apply", "-f", bob.write("survivor.yaml", SURVIVOR))
        bob.pinnace("kubectl", "rollout", "status", "deployment/survivor", "--timeout=120s")
        assert where(bob) == ["n3"]
        bob.bed.kill_host("n3")
        wait_until("the pod to move", lambda: "n2" in where(bob), limit=120, interval=2)
        assert "NotReady" in bob.pinnace("kubectl", "get", "node", "n3").stdout
    finally:
        bob.bed.start_host("n3")
        bob.pinnace("down", "loss")
    wait_until("n3 to be back", lambda: bob.bed.nodes().get("n3") == "idle", limit=60)
    # A host that lost its power still has the node's files. The user's next node there removes them.
    bob.pinnace("run", "-N", "2", "-w", "n2,n3", bob.write("nothing.sh", "#!/bin/sh\n", 0o755))
    assert_nothing_left(bob)


def test_a_control_plane_that_cannot_be_saved_ends_the_cluster_with_the_reason(bob: User) -> None:
    with bob.bed.popen(["pinnace", "run", "-w", "n3", "--image", "busybox.tar", bob.write("sleep.yaml", SLEEP)],
                       user="bob") as process:  # fmt: skip

        def ended() -> bool:
            bob.bed.run(["pkill", "-KILL", "-x", "-u", "bob", "etcd"], user="root", on="n3", check=False)
            return process.poll() is not None

        wait_until("pinnace to give up", ended, limit=180, interval=0.2)
        _, messages = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "n3 cannot be a node: etcd does not stay up" in messages
    assert "killed by SIGKILL" in messages
    assert_nothing_left(bob)


def where(user: User) -> list[str]:
    """The nodes on which running pods of the deployment are."""
    pods = Kubectl(user=user, cluster="loss").json("get", "pods", "-l", "app=survivor")["items"]
    return [
        pod["spec"]["nodeName"]
        for pod in pods
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]
