"""`pinnace run`: from nothing to a workload's end, and what is left then."""

from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed.waiting import wait_until

if TYPE_CHECKING:
    from over.conftest import User

pytestmark = pytest.mark.bed

EXAMPLES = Path(__file__).parents[2] / "examples"
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: work}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 5
      containers:
        - {name: main, image: "%(image)s", command: [sh, -c, "%(command)s"]}
"""


def job(command: str, image: str = "localhost/pinnace-test/busybox:1") -> str:
    return JOB % {"command": command, "image": image}


def assert_nothing_left(user: User) -> None:
    """No job, process, namespace or file of the user on any compute host."""
    wait_until("the user's jobs to end", lambda: not user.run("squeue", "--me", "--noheader").stdout, limit=60)
    for host in ("n1", "n2", "n3"):
        wait_until("the user's processes to end", partial(no_process, user, host), limit=30)
        pattern = f"pinnace-{user.uid}-*"
        scratch = user.bed.run(["find", "/tmp", "-maxdepth", "1", "-name", pattern], user="root", on=host).stdout
        assert not scratch, f"{host}: {scratch}"


def no_process(user: User, host: str) -> bool:
    """Whether no process of the user runs there, nor of the users that only exist inside the user's clusters."""
    listing = user.bed.run(["ps", "-eo", "uid", "--no-headers"], user="root", on=host).stdout
    return not any(int(uid) in user.uids for uid in listing.split())


def test_the_example_runs_on_two_nodes_and_leaves_nothing(bob: User) -> None:
    shutil.copy(EXAMPLES / "hello.yaml", bob.home)
    (bob.home / "thesis").mkdir(exist_ok=True)
    bob.write("thesis/chapter", "years of work")
    before = {path.name for path in bob.home.iterdir()}
    result = bob.pinnace("run", "-N", "2", "-t", "10", "--image", "busybox.tar", "hello.yaml")
    assert before <= {path.name for path in bob.home.iterdir()}, "a cluster's end took something of the user's with it"
    assert (bob.home / "thesis" / "chapter").read_text() == "years of work"
    lines = re.findall(r"^\[(hello-\w+)/hello\] hello from (\S+) on (n\d)", result.stdout, re.MULTILINE)
    assert len(lines) == 2, result.stdout
    assert all(pod == host for pod, host, _ in lines)
    assert {node for *_, node in lines} == {"n1", "n2"}
    assert "cluster is ready" in result.stderr
    assert not bob.pinnace("list", "-o", "name").stdout
    assert_nothing_left(bob)


def test_the_exit_code_is_the_workloads(bob: User) -> None:
    name = bob.write("fails.yaml", job("echo about to fail; exit 42"))
    result = bob.pinnace("run", "--image", "busybox.tar", name, code=42)
    assert "about to fail" in result.stdout
    assert_nothing_left(bob)


def test_a_script_uses_kubectl_and_its_exit_code_counts(bob: User) -> None:
    script = "#!/bin/sh\nkubectl get nodes -o name; kubectl version; echo got $1; exit 7\n"
    bob.write("script.sh", script, 0o755)
    result = bob.pinnace("run", "-N", "2", "script.sh", "argument", code=7)
    assert "node/n1\nnode/n2" in result.stdout
    assert "Server Version: v1.36.3" in result.stdout
    assert "got argument" in result.stdout


def test_inside_an_allocation_it_uses_that_allocation(bob: User) -> None:
    shutil.copy(EXAMPLES / "hello.yaml", bob.home)
    script = "#!/bin/bash\npinnace run --image busybox.tar hello.yaml\n"
    bob.write("job.sh", script, 0o755)
    bob.run("sbatch", "--wait", "-N", "2", "--mem", "3G", "-o", "job.out", "job.sh")
    output = (bob.home / "job.out").read_text()
    assert len(re.findall(r"hello from .* on n\d", output)) == 2, output
    assert_nothing_left(bob)


def test_a_cancelled_run_ends_its_pods_in_order(bob: User) -> None:
    """scancel while the workload runs: the container sees SIGTERM and has time to answer."""
    command = "trap 'echo got TERM > /out/term; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    manifest = job(command).replace(
        "containers:", "volumes: [{name: out, hostPath: {path: /home/bob}}]\n      containers:"
    ).replace("command:", "volumeMounts: [{name: out, mountPath: /out}], command:")  # fmt: skip
    name = bob.write("trap.yaml", manifest)
    (bob.home / "term").unlink(missing_ok=True)
    with bob.bed.popen(["pinnace", "run", "--image", "busybox.tar", name], user="bob") as process:
        assert process.stdout
        assert process.stderr
        if "ready" not in process.stdout.readline():
            pytest.fail(process.stderr.read())
        number = bob.run("squeue", "--me", "--noheader", "--format=%i").stdout.strip()
        bob.run("scancel", number)
        process.communicate(timeout=60)
    assert process.returncode != 0
    assert (bob.home / "term").read_text() == "got TERM\n"
    assert_nothing_left(bob)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run", "-p", "nowhere", "hello.yaml"], "invalid partition"),
        (["run", "-N", "99", "hello.yaml"], "more processors requested than permitted"),
        (["run", "missing.yaml"], "there is no file missing.yaml"),
        (["up", "--name", "Not_A_Name"], "cannot be the name of a cluster"),
        (["down", "unknown"], "there is no cluster 'unknown'"),
    ],
)
def test_bad_input_is_answered_at_once(bob: User, argv: list[str], message: str) -> None:
    shutil.copy(EXAMPLES / "hello.yaml", bob.home)
    result = bob.pinnace(*argv, code=None, timeout=30)
    assert result.returncode != 0
    assert message in result.stderr.lower() or message in result.stderr, result.stderr
    assert not bob.pinnace("list", "-o", "name").stdout


def test_a_manifest_that_does_not_parse_is_answered_with_kubectls_words(bob: User) -> None:
    name = bob.write("broken.yaml", "kind: [")
    result = bob.pinnace("run", name, code=1)
    assert "error parsing broken.yaml" in result.stderr
    assert_nothing_left(bob)


def test_an_image_that_cannot_be_pulled_is_named(bob: User) -> None:
    name = bob.write("pull.yaml", job("true", image="registry.invalid/none:1"))
    result = bob.pinnace("run", name, code=1)
    assert "registry.invalid/none:1" in result.stderr
    assert "cannot start" in result.stderr
    assert_nothing_left(bob)


def test_a_user_without_subordinate_ids_is_told(carol: User) -> None:
    shutil.copy(EXAMPLES / "hello.yaml", carol.home)
    (carol.home / "hello.yaml").chmod(0o644)
    result = carol.pinnace("run", "hello.yaml", code=1)
    assert "carol has no entry in /etc/subuid on n" in result.stderr
    assert_nothing_left(carol)
