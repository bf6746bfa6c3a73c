"""How long a command waits: for a job's turn, for a cluster, for what a workload was run for."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import pytest

from e2e.left import assert_nothing_left
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.conftest import User

pytestmark = pytest.mark.bed

WEB = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: "%s", command: [sh, -c, "echo serving; exec sleep 3600"]}]
"""
BUSYBOX = "localhost/pinnace-test/busybox:1"


@contextlib.contextmanager
def busy(user: User, host: str) -> Iterator[None]:
    """While a job of the user's own has all of a host."""
    job = user.run("sbatch", "--parsable", "-w", host, "--exclusive", "-o", "/dev/null", "--wrap", "sleep 600").stdout
    try:
        state = ["squeue", "--noheader", "--format=%T", "-j", job.strip()]
        wait_until("the host to be busy", lambda: user.run(*state).stdout.strip() == "RUNNING", limit=60, interval=0.2)
        yield
    finally:
        user.run("scancel", job.strip())


@pytest.mark.parametrize("until", ["deployment/web=Available", "2s"])
def test_a_deployment_runs_until_it_has_done_enough(bob: User, until: str) -> None:
    name = bob.write("until.yaml", WEB % BUSYBOX)
    result = bob.pinnace("run", "--image", "busybox.tar", "--until", until, name)
    assert "applied until.yaml" in result.stderr
    assert "cluster has ended" in result.stderr
    assert_nothing_left(bob)


def test_a_deployment_whose_image_is_nowhere_is_not_waited_for(bob: User) -> None:
    name = bob.write("nowhere.yaml", WEB % "registry.invalid/none:1")
    result = bob.pinnace("run", "--until", "deployment/web=Available", name, code=1)
    assert "registry.invalid/none:1" in result.stderr
    assert_nothing_left(bob)


def test_a_condition_of_nothing_is_answered_with_kubectls_words(bob: User) -> None:
    name = bob.write("until.yaml", WEB % BUSYBOX)
    result = bob.pinnace("run", "--image", "busybox.tar", "--until", "deployment/other=Available", name, code=1)
    assert 'deployments.apps "other" not found' in result.stderr
    assert_nothing_left(bob)


def test_a_queue_is_waited_in_only_as_long_as_the_user_says(bob: User) -> None:
    with busy(bob, "n3"):
        nothing = bob.write("nothing.sh", "#!/bin/sh\n", 0o755)
        result = bob.pinnace("run", "-w", "n3", "--wait-limit", "10s", nothing, code=1)
        assert "was not started within the limit: job" in result.stderr
        assert "is pending in main (Resources)" in result.stderr
        assert "--wait-limit" in result.stderr
        assert not bob.pinnace("list", "-o", "name").stdout
    assert_nothing_left(bob)


def test_a_cluster_that_was_submitted_is_waited_for_later(bob: User) -> None:
    with busy(bob, "n3"):
        submitted = bob.pinnace("up", "--no-wait", "--name", "later", "-w", "n3")
        assert "pinnace up --wait --name later" in submitted.stderr
        early = bob.pinnace("kubeconfig", "later", code=1)
        assert "pinnace up --wait --name later" in early.stderr
        in_vain = bob.pinnace("up", "--wait", "--name", "later", "--wait-limit", "2s", code=1)
        assert "was not started within the limit: job" in in_vain.stderr
        (row,) = json.loads(bob.pinnace("list", "-o", "json").stdout)
        assert (row["name"], row["state"]) == ("later", "pending"), "to wait in vain is not to end it"
    bob.pinnace("up", "--wait", "--name", "later")
    assert "node/n3" in bob.pinnace("kubectl", "--name", "later", "get", "nodes", "-o", "name").stdout
    bob.pinnace("up", "--wait", "--name", "later")
    late = bob.pinnace("up", "--wait", "--name", "later", "-N", "2", code=2)
    assert "it is too late for --nodes" in late.stderr
    bob.pinnace("down", "later")
    assert_nothing_left(bob)
