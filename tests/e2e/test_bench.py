"""`pinnace bench` as a user runs it: everything is measured and written, interrupted, resumed, or refused.

kwok is optional and takes minutes to build, so that most machines do not have it here: `pinnace bench growth` then says
so. Where `pinnace fetch kwok` has been run, it is measured instead.
"""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from testbed.images import build_image
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.conftest import User

pytestmark = pytest.mark.bed

BUSYBOX = "localhost/pinnace-test/busybox:1"
LIMIT = 240.0


@pytest.fixture(scope="module")
def user(alice: User) -> User:
    shutil.copy(build_image("bench"), alice.home / "bench.tar")
    (alice.home / "bench.tar").chmod(0o644)
    alice.pinnace("image", "load", "bench.tar", "busybox.tar")
    return alice


def samples(directory: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in (directory / "samples.jsonl").read_text().splitlines()]
    except FileNotFoundError:
        return []


def nothing_is_left(user: User) -> None:
    """No job, no cluster, and no file of a run outside of its directory."""
    jobs = ["squeue", "--me", "--noheader", "--name=pinnace-bench"]
    wait_until("the end of all jobs", lambda: not user.run(*jobs).stdout.strip(), limit=30)
    clusters = user.pinnace("list", "-o", "name").stdout.split()
    assert not [name for name in clusters if name.startswith("bench-")]
    assert not list((user.home / ".local/share/pinnace/bench").glob("*"))


@pytest.mark.timeout(LIMIT)
def test_every_model_is_measured_beside_bare_slurm(user: User) -> None:
    only = "startup,cpu,tcp-rr-host"
    result = user.pinnace(
        "bench", "-N", "2", "--quick", "--repeat", "1", "--only", only, "--settle", "0s",
        "--startup-image", BUSYBOX, "--output", "run", timeout=LIMIT,
    )  # fmt: skip
    run = user.home / "run"
    done = {(sample["model"], sample["task"]) for sample in samples(run) if not sample["error"]}
    models = ("bare", "over", "pods", "slurmjob")
    tasks = ("startup", "cpu", "tcp-rr-host")
    assert done == {(model, task) for model in models for task in tasks}, result.stderr
    assert all(value > 0 for sample in samples(run) for value in sample["values"].values())
    data = json.loads((run / "results.json").read_text())
    assert data["machine"]["hosts"] == [host["host"] for host in data["machine"]["descriptions"]]
    assert data["versions"]["kubernetes"]
    assert len(data["results"]) == len(models) * len(tasks)
    with (run / "results.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(models) * len(tasks)
    assert "events per second" in (run / "outputs/001-over-cpu.txt").read_text()
    report = (run / "report.html").read_text()
    assert "cluster in a job" in report
    assert "cluster in a job" in result.stdout
    assert "matplotlib is not installed" in result.stderr  # as a site may have it
    nothing_is_left(user)


@pytest.mark.timeout(LIMIT)
def test_an_interrupted_run_goes_on_where_it_was(user: User) -> None:
    options = ["-N", "1", "--quick", "--repeat", "2", "--only", "startup", "--models", "over"]
    argv = user.bed.command(
        ["pinnace", "bench", *options, "--startup-image", BUSYBOX, "--output", "cut"], user="alice"
    )  # fmt: skip
    run = user.home / "cut"
    with subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        wait_until("a sample of the cluster", lambda: len(samples(run)) >= 2, limit=120)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    before = samples(run)
    assert process.returncode == 130, errors
    assert "pinnace bench --resume cut" in errors
    assert (run / "report.html").exists()
    nothing_is_left(user)
    user.pinnace("bench", "--resume", "cut", timeout=LIMIT)
    after = [sample for sample in samples(run) if not sample["error"]]
    assert samples(run)[: len(before)] == before
    assert sorted((sample["round"], sample["model"]) for sample in after) == [
        (1, "bare"), (1, "over"), (2, "bare"), (2, "over"),
    ]  # fmt: skip
    compared = user.pinnace("bench", "compare", "cut", "cut")
    assert compared.stdout.count("too few samples") == 2
    assert "2 compared, 0 within noise" in compared.stderr


def test_a_missing_tool_is_told_before_anything_is_measured(user: User) -> None:
    given = ["--quick", "-N", "1", "--only", "cpu", "--image-name", BUSYBOX, "--output", "missing"]
    result = user.pinnace("bench", *given, code=1)
    assert f"the image {BUSYBOX} has no sysbench" in result.stderr
    assert "--image-name" in result.stderr
    assert not samples(user.home / "missing")
    nothing_is_left(user)


def test_bad_requests_are_refused_at_once(user: User) -> None:
    result = user.pinnace("bench", "--image-name", "localhost/none:1", "--output", "none", code=1)
    assert "there is no image localhost/none:1" in result.stderr
    assert "make bench-image" in result.stderr
    result = user.pinnace("bench", "--only", "cpu,gpu", code=2)
    assert "gpu is none of startup, cpu, memory" in result.stderr
    result = user.pinnace("bench", "--resume", ".", code=1)
    assert "no directory of a run" in result.stderr
    result = user.pinnace("bench", "--resume", ".", "--quick", code=2)
    assert "too late for --quick" in result.stderr
    assert not (user.home / "none").exists()
    result = user.run("srun", "pinnace", "bench", code=None)
    assert "inside a Slurm job" in result.stderr


def jobs(user: User) -> set[str]:
    """All that Slurm knows of, also those that have ended."""
    return set(user.run("squeue", "--me", "--noheader", "--states=all", "--format=%i").stdout.split())


def test_growth_without_kwok_is_refused_before_a_job_is_submitted(user: User, real_store: Path) -> None:
    if (real_store / "kwok").exists():
        pytest.skip("kwok is in the store")
    before = jobs(user)
    result = user.pinnace("bench", "growth", "--sizes", "2:20", "--output", "growth", code=1)
    assert "kwok 0.8.0, which simulates the nodes, is not in the store" in result.stderr
    assert "Run `pinnace fetch kwok`" in result.stderr
    assert not jobs(user) - before
    assert not (user.home / "growth").exists()
    nothing_is_left(user)


@pytest.mark.timeout(LIMIT)
def test_growth_is_measured_size_by_size(user: User, real_store: Path) -> None:
    if not (real_store / "kwok").exists():
        pytest.skip("kwok is not in the store: pinnace fetch kwok")
    given = ["--sizes", "2:20,4:60", "--mem", "3000M", "--output", "growth"]
    result = user.pinnace("bench", "growth", *given, timeout=LIMIT)
    data = json.loads((user.home / "growth" / "growth.json").read_text())
    sizes = data["parts"]["simulated"]["sizes"]
    assert [(size["nodes"], size["pods"]) for size in sizes] == [(2, 20), (4, 60)]
    for size in sizes:
        for name in ("nodes_seconds", "pods_per_second", "pod_start_p99", "apiserver_mib", "apiserver_cpu_ms_per_pod"):
            assert size[name] > 0, name
    assert data["machine"]["host"]
    assert "pods per second" in result.stdout
    assert "4 nodes, 60 pods" in result.stderr
    assert "Growth" in (user.home / "growth" / "report.html").read_text()
    assert not user.run("pgrep", "-x", "kwok", code=None).stdout
    nothing_is_left(user)
