"""`pinnace run`: from nothing to a workload's end, and what is left then."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e.left import assert_nothing_left, has_job, remove_left
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from e2e.conftest import User

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


ENDED = ["sacct", "-X", "--noheader", "--parsable2", "--format=JobID,State,ExitCode"]


def ended(user: User) -> dict[str, str]:
    """How Slurm's accounting says that the clusters of `pinnace run` have ended, by job."""
    rows = user.run(*ENDED, "--starttime=now-2hours").stdout.split()
    return dict(row.split("|", 1) for row in rows)


@pytest.mark.parametrize("times", [3, pytest.param(50, marks=[pytest.mark.stress, pytest.mark.timeout(3600)])])
def test_the_example_runs_on_two_nodes_and_leaves_nothing(bob: User, times: int) -> None:
    shutil.copy(EXAMPLES / "hello.yaml", bob.home)
    (bob.home / "thesis").mkdir(exist_ok=True)
    bob.write("thesis/chapter", "years of work")
    before, jobs_before = {path.name for path in bob.home.iterdir()}, ended(bob)
    for number in range(times):
        collected = ["--output-dir", f"hello/{times}/{number}"]
        result = bob.pinnace("run", "-N", "2", "-t", "10", "--image", "busybox.tar", *collected, "hello.yaml")
        lines = re.findall(
            r"^\[(hello-\w+)/hello\] hello from (\S+) on (n\d), kubernetes is at 10\.", result.stdout, re.MULTILINE
        )
        assert len(lines) == 2, result.stdout
        assert all(pod == host for pod, host, _ in lines)
        assert {node for *_, node in lines} == {"n1", "n2"}
        logs = (bob.home / collected[1]).glob("hello-*_hello.log")
        assert sorted(log.name.removesuffix("_hello.log") for log in logs) == sorted(pod for pod, *_ in lines)
        assert "cluster is ready" in result.stderr

    def made() -> dict[str, str]:
        return {job: how for job, how in ended(bob).items() if job not in jobs_before}

    def is_written_down() -> bool:
        states = [how.partition("|")[0] for how in made().values()]
        return len(states) >= times and not {"PENDING", "RUNNING", "COMPLETING"} & set(states)

    wait_until("accounting", is_written_down, limit=60, interval=0.5)
    jobs = made()
    assert list(jobs.values()) == ["COMPLETED|0:0"] * times, f"other jobs may depend on them: {jobs}"
    assert before <= {path.name for path in bob.home.iterdir()}, "a cluster's end took something of the user's with it"
    assert (bob.home / "thesis" / "chapter").read_text() == "years of work"
    assert not bob.pinnace("list", "-o", "name").stdout
    assert_nothing_left(bob)


PYTHON = """
import os, subprocess, threading, time
from pathlib import Path
import pinnace
with pinnace.Cluster(nodes=2, images=[Path("busybox.tar")]) as cluster:
    subprocess.run(["kubectl", "get", "nodes", "-o", "name"], env=os.environ | cluster.environment(), check=True)
    same = pinnace.Cluster.existing(cluster.name)
    print(same.state(), *[applied.kind for applied in same.apply("fails.yaml")], flush=True)
    lines = []
    result = cluster.run("fails.yaml", on_line=lambda container, line: lines.append(line))
    print(result.exit_code, *lines)
    print(cluster.kubectl("get", "job/none", check=False).returncode)
    try:
        cluster.kubectl("get", "job/none")
    except pinnace.ClusterError as error:
        print(error)
    cluster.kubectl("delete", "job/work")
    def delete_work():
        for _ in range(60):
            if cluster.kubectl("delete", "job/work", check=False).returncode == 0:
                return
            time.sleep(1)
    delete = threading.Timer(3, delete_work)
    delete.start()
    try:
        cluster.run("sleeps.yaml")
    except pinnace.ClusterError as error:
        print(error)
    delete.join()
print(pinnace.Cluster(images=[Path("busybox.tar")]).run_once("fails.yaml").exit_code)
"""


def test_the_python_of_the_readme(bob: User) -> None:
    bob.write("fails.yaml", job("echo about to fail; exit 42"))
    bob.write("sleeps.yaml", job("sleep 600"))
    result = bob.run("/opt/pinnace/bin/python", bob.write("cluster.py", PYTHON), timeout=240)
    first, second, *said = result.stdout.splitlines()
    assert sorted((first, second)) == ["node/n1", "node/n2"]
    assert said == [
        "running Job",
        "42 about to fail",
        "1",
        'kubectl get job/none: Error from server (NotFound): jobs.batch "none" not found',
        "Job work was deleted before it ended",
        "42",
    ]
    assert result.stderr == "", "the library prints nothing"
    assert_nothing_left(bob)


def test_the_exit_code_is_the_workloads_and_logs_and_events_are_collected(bob: User) -> None:
    name = bob.write("fails.yaml", job("echo one; echo about to fail; exit 42"))
    timed = ["--timeline", "--output-dir", "results/run"]
    result = bob.pinnace("run", "--image", "busybox.tar", *timed, name, code=42)
    assert "about to fail" in result.stdout
    (log,) = (bob.home / "results" / "run").glob("work-*_main.log")
    assert log.read_text() == "one\nabout to fail\n"
    events = json.loads((bob.home / "results" / "run" / "events.json").read_text())
    assert "Started" in {event["reason"] for event in events}
    (saved,) = (bob.home / "results" / "run").glob("timeline-*.json")
    timeline = json.loads(saved.read_text())
    assert timeline["slurm"] < timeline["nodes_ready"]
    assert timeline["slurm"] < timeline["first_line"]
    assert {"drain", "remove files"} <= {step["name"] for step in timeline["steps"] if step["phase"] == "end"}
    assert "first line of the workload after" in result.stderr
    assert_nothing_left(bob)


SCRIPT = """#!/bin/sh
set -e
kubectl get nodes -o name
kubectl version
kubectl run work --image=localhost/pinnace-test/busybox:1 --restart=Never -- sleep 600
kubectl wait pod/work --for=condition=Ready --timeout=90s
kubectl exec work -- echo it works
kubectl logs work
echo got $1
exit 7
"""


def test_a_script_uses_kubectl_and_its_exit_code_counts_whatever_a_session_has_in_its_environment(bob: User) -> None:
    """A proxy that nobody answers for, and a directory that is on the login node alone, do no harm."""
    bob.write("script.sh", SCRIPT, 0o755)
    surroundings = [f"{name}=http://192.0.2.1:3128" for name in ("HTTP_PROXY", "HTTPS_PROXY", "https_proxy")]
    session = ["env", *surroundings, f"XDG_RUNTIME_DIR=/run/user/{bob.uid}"]
    run = ["pinnace", "run", "-N", "2", "--image", "busybox.tar", "script.sh", "argument"]
    result = bob.run(*session, *run, code=7)
    assert "node/n1\nnode/n2" in result.stdout
    assert "Server Version: v1.36.3" in result.stdout
    assert "it works" in result.stdout
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


def test_a_dry_run_only_prints(bob: User) -> None:
    shutil.copy(EXAMPLES / "hello.yaml", bob.home)
    assert bob.pinnace("run", "-N", "2", "--dry-run", "hello.yaml").stdout.startswith("srun --job-name=pinnace-")
    assert "#SBATCH --job-name=pinnace-default" in bob.pinnace("up", "--dry-run").stdout
    assert not bob.run("squeue", "--me", "--noheader").stdout
    assert not bob.pinnace("list", "-o", "name").stdout


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run", "-p", "nowhere", "hello.yaml"], "invalid partition"),
        (["run", "-N", "99", "hello.yaml"], "more processors requested than permitted"),
        (["up", "-p", "nowhere"], "invalid partition"),
        (["up", "-N", "99"], "more processors requested than permitted"),
        (["run", "missing.yaml"], "there is no file missing.yaml"),
        (["run", "broken.yaml"], "broken.yaml, line 1: did not find expected node content"),
        (["up", "--name", "Not_A_Name"], "cannot be the name of a cluster"),
        (["down", "unknown"], "there is no cluster 'unknown'"),
        (["run", "--network", "10.50.0.0/16", "hello.yaml"], "overlaps with 10.50.0.0/24, which this host has"),
        (["run", "--until", "soon", "hello.yaml"], "--until soon: neither a duration nor a condition"),
        (["run", "--wait-limit", "30", "hello.yaml"], "'30' is no duration such as 90s"),
    ],
)
def test_bad_input_is_answered_at_once(bob: User, argv: list[str], message: str) -> None:
    shutil.copy(EXAMPLES / "hello.yaml", bob.home)
    bob.write("broken.yaml", "kind: [")
    result = bob.pinnace(*argv, code=None, timeout=30)
    assert result.returncode != 0
    assert message in result.stderr.lower() or message in result.stderr, result.stderr
    if "requested" in message or "partition" in message:
        assert "`sinfo` shows partitions, their nodes and limits" in result.stderr
        assert "Nothing was heard" not in result.stderr
    assert not bob.pinnace("list", "-o", "name").stdout


def test_a_manifest_that_the_api_refuses_is_answered_with_kubectls_words(bob: User) -> None:
    """And what a run that was killed has left is gone after the next one."""
    bob.pinnace("run", bob.write("dies.sh", "#!/bin/sh\nkill -9 $PPID\n", 0o755), code=None)
    clusters = bob.home / ".local/share/pinnace/clusters"
    assert len(list(clusters.iterdir())) == 1, "nobody was there to remove it"
    wait_until("its job to end", lambda: not has_job(bob), limit=60)
    name = bob.write("refused.yaml", job("true").replace("kind: Job", "kind: Jobs"))
    result = bob.pinnace("run", name, code=1)
    assert "kubectl apply -f refused.yaml: " in result.stderr
    assert 'no matches for kind "Jobs"' in result.stderr
    assert list(clusters.iterdir()) == []
    remove_left(bob)
    assert_nothing_left(bob)


def test_an_image_that_cannot_be_pulled_is_named(bob: User) -> None:
    name = bob.write("pull.yaml", job("true", image="registry.invalid/none:1"))
    result = bob.pinnace("run", name, code=1)
    assert "registry.invalid/none:1" in result.stderr
    assert "cannot start" in result.stderr
    assert_nothing_left(bob)
