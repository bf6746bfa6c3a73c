"""Pods as Slurm jobs, measured on a test bed of their own.

    .venv/bin/python benchmarks/pods.py [latency] [rate] [pending] [kill]

latency   from `kubectl run` to the container's first line, with a small image and with one of 45 MB that the host has
          run before, beside `srun` and `sbatch`; medians, all figures, and when each step of the start was
rate      200 pods of one second over four hosts, beside the same 200 as plain sbatch jobs; WIDTHS="6 1" are their CPUs,
          COUNT=400 is another number of them
pending   1,000 pods that wait: how long one look of the provisioner takes, and its memory
kill      100 pods while the provisioner is killed 50 times, and slurmctld restarted: each pod has exactly one job

Slurm's pauses are switched off, but with USUAL=1, where it has those of a site that has set none.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pinnace.components.store import user_root
from testbed import Bed
from testbed.images import build_image
from testbed.plan import Plan
from testbed.software import install
from testbed.state import Directories

PROJECT = Path(__file__).parents[1]
STATE = Directories(state=Path(os.environ.get("TESTBED_BENCH_STATE", "/var/lib/testbed-bench")))
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: %(name)s, annotations: {pinnace.dev/flags: "%(flags)s"}}
spec:
  completions: %(count)d
  parallelism: %(count)d
  backoffLimit: 1000
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: "localhost/pinnace-test/busybox:1", command: [sleep, "%(seconds)s"]}]
"""


def say(text: str) -> None:
    print(text, flush=True)


def figures(name: str, values: list[float], unit: str) -> None:
    say(f"{name:44} {median(values):7.2f} {unit}   ({', '.join(f'{value:.2f}' for value in values)})")


class Site:
    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.home = STATE.home / "alice"
        self.cluster = self.home / ".local/share/pinnace/clusters/default"

    def run(self, *argv: str, check: bool = True) -> str:
        return self.bed.run(list(argv), timeout=600, check=check).stdout

    def kubectl(self, *words: str) -> str:
        return self.run("pinnace", "kubectl", *words)

    def json(self, *words: str) -> Any:
        return json.loads(self.kubectl(*words, "-o", "json"))

    def apply(self, name: str, count: int, seconds: str, flags: str = "") -> None:
        text = JOB % {"name": name, "count": count, "seconds": seconds, "flags": flags}
        (self.home / "job.yaml").write_text(text)
        self.kubectl("apply", "-f", "job.yaml")

    def wait_done(self, name: str, limit: float) -> None:
        self.bed.run(
            ["pinnace", "kubectl", "wait", "--for=condition=Complete", f"job/{name}", f"--timeout={limit:.0f}s"],
            timeout=limit + 60,
        )

    def delay(self, job: str) -> float | None:
        """Between a job's submission and its start, in seconds, by slurmctld's log, which does not have every start."""
        log = (STATE.host("login") / "log/slurm/slurmctld.log").read_text()
        times = re.findall(rf"^\[(\S+)\] (?:_slurm_rpc_submit_batch_job:|sched.*) .*JobId={job} ", log, re.MULTILINE)
        if len(times) < 2:
            return None
        submitted, started = map(dt.datetime.fromisoformat, times[:2])
        return (started - submitted).total_seconds()

    @property
    def direct_kubectl(self) -> list[str]:
        """kubectl without pinnace before it."""
        spec = json.loads((self.cluster / "cluster.json").read_text())
        kubeconfig = "/home/alice/.local/share/pinnace/clusters/default/kubeconfig"
        return [spec["binaries"]["kubectl"], f"--kubeconfig={kubeconfig}"]

    @property
    def log(self) -> Path:
        return self.cluster / "logs/n1/provisioner.log"


def latency(site: Site, rounds: int = int(os.environ.get("ROUNDS", "15"))) -> None:
    srun, sbatch = [], []
    pods: dict[str, list[Start]] = {"busybox": [], "nettools": []}
    for image in pods:
        measure_start(site, image, f"{image}-first")  # the host has run it before
    for number in range(rounds):
        begin = time.time()
        srun.append(float(site.run("srun", "date", "+%s.%N")) - begin)
        begin = time.time()
        site.run("sbatch", "--output=/home/alice/started", "--wrap=date +%s.%N")
        time.sleep(1.5)
        sbatch.append(float((site.home / "started").read_text()) - begin)
        for image, starts in pods.items():
            starts.append(measure_start(site, image, f"{image}-{number}"))
    say(f"load of the machine: {os.getloadavg()[0]:.1f}")
    figures("first line, bare srun", srun, "s")
    figures("first line, bare sbatch", sbatch, "s")
    for image, starts in pods.items():
        figures(f"first line, pod as a job, {image}", [start.first_line for start in starts], "s")
        known = [(start.first_line, start.slurm) for start in starts if start.slurm is not None]
        figures("  Slurm's delay before it looks at batch jobs", [delay for _, delay in known], "s")
        figures("  the first line without that delay", [line - delay for line, delay in known], "s")
        show_steps(starts)


@dataclass(frozen=True, kw_only=True)
class Start:
    """The start of a pod. Times are seconds after `kubectl run`; steps have a beginning and an end."""

    first_line: float
    slurm: float | None  # the delay of its job, if it is known
    steps: dict[str, tuple[float, float]]


def measure_start(site: Site, image: str, name: str) -> Start:
    argv = ["run", name, f"--image=localhost/pinnace-test/{image}:1", "--restart=Never", "--", "echo", "here"]
    command = site.bed.command([*site.direct_kubectl, *argv])
    begin = time.time()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
    time.sleep(4)  # whoever looks takes CPUs from what is looked at
    while site.json("get", "pod", name)["status"]["phase"] != "Succeeded":
        time.sleep(0.5)
    stamp = site.kubectl("logs", "--timestamps", name).split()[0]
    node = site.json("get", "pod", name)["spec"]["nodeName"]
    timeline = json.loads(site.run("pinnace", "timeline", "--node", node, "--output", "json"))
    first = timeline["origin"] - begin
    steps = {
        step["name"].replace(name, "POD"): (first + step["begin"], first + (step["end"] or step["begin"]))
        for step in timeline["steps"]
        if step["phase"] == "start"
    }
    site.kubectl("delete", "pod", name, "--wait=false")
    time.sleep(2)
    return Start(
        first_line=dt.datetime.fromisoformat(f"{stamp[:26]}+00:00").timestamp() - begin,
        slurm=site.delay(node.removeprefix("job-")),
        steps=steps,
    )


def show_steps(starts: list[Start]) -> None:
    """When each step began and ended, in seconds after `kubectl run`; medians of the starts that had it."""
    names = dict.fromkeys(name for start in starts for name in start.steps)
    rows = []
    for name in names:
        spans = [start.steps[name] for start in starts if name in start.steps]
        rows.append((median(begin for begin, _ in spans), median(end for _, end in spans), name))
    last = median(start.first_line for start in starts)
    for begin, end, name in sorted(row for row in rows if row[0] <= last):
        say(f"    {begin:6.2f} {end:6.2f}  {name}")


def rate(site: Site, count: int = int(os.environ.get("COUNT", "200"))) -> None:
    """With one pod at a time on each host, which this machine may have CPUs for, and with as many as fit."""
    for cpus in map(int, os.environ.get("WIDTHS", "6 1").split()):
        say(f"jobs of {cpus} of a host's 8 CPUs:")
        rate_with(site, count, cpus)


def rate_with(site: Site, count: int, cpus: int) -> None:
    """From the command until all are done, as users wait; and from the first start to the last end, as hosts work."""
    name, flags = f"plain-{cpus}", f"--cpus-per-task={cpus}"
    options = ["--output=/dev/null", "--mem=1152M", f"--job-name={name}", flags]
    begin = time.monotonic()
    (site.home / "many.sh").write_text(f"for i in $(seq {count}); do sbatch {' '.join(options)} --wrap='sleep 1'; done")
    site.run("bash", "many.sh")
    while site.run("squeue", "--me", "--noheader", f"--name={name}"):
        time.sleep(0.5)
    plain = time.monotonic() - begin
    rows = site.run("sacct", "-X", "--noheader", "--parsable2", f"--name={name}", "--format=Start,End").split()
    plain_span = span([row.split("|")[0] for row in rows], [row.split("|")[1] for row in rows])
    say(f"{count} plain sbatch jobs of 1 s: {plain:.1f} s, {count / plain:.2f} a second; at work {plain_span:.0f} s")
    begin = time.monotonic()
    site.apply("rate", count, "1", flags)
    site.wait_done("rate", 1200)
    taken = time.monotonic() - begin
    pods = site.json("get", "pods", "-l", "job-name=rate")["items"]
    ended = [pod["status"]["containerStatuses"][0]["state"]["terminated"] for pod in pods]
    pods_span = span([state["startedAt"] for state in ended], [state["finishedAt"] for state in ended])
    say(f"{count} pods of 1 s:            {taken:.1f} s, {count / taken:.2f} a second; at work {pods_span:.0f} s")
    say(f"of the rate of sbatch: {plain / taken:.2f}; at work {plain_span / pods_span:.2f}")
    say(f"they ran in {len({pod['spec']['nodeName'] for pod in pods})} jobs")
    site.kubectl("delete", "job", "rate")
    while site.run("squeue", "--me", "--noheader", "--format=%k").count("Job/rate"):
        time.sleep(1)


def span(starts: list[str], ends: list[str]) -> float:
    """Seconds from the first start to the last end."""
    first, last = min(map(dt.datetime.fromisoformat, starts)), max(map(dt.datetime.fromisoformat, ends))
    return (last - first).total_seconds()


def memory_of(site: Site) -> int:
    """Of the provisioner, in MiB."""
    status = site.bed.run(["cat", f"/proc/{provisioner(site)}/status"], on="n1").stdout
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) // 1024


def provisioner(site: Site) -> str:
    """Its pid on the head's host, once it has one."""
    while True:
        found = site.bed.run(["pgrep", "-f", "pinnace.podjobs.controller"], on="n1", check=False).stdout.split()
        if found:
            return found[0]
        time.sleep(0.05)


def pending(site: Site, count: int = 1000) -> None:
    before = memory_of(site)
    site.apply("pending", count, "1", flags="--hold")
    deadline = time.monotonic() + 300
    while len(site.kubectl("get", "pods", "-l", "job-name=pending", "-o", "name").split()) < count:
        if time.monotonic() > deadline:
            raise RuntimeError("the pods were not made")
        time.sleep(2)
    memory = [before]
    for _ in range(6):
        time.sleep(30)
        memory.append(memory_of(site))
    looks = [float(value) for value in re.findall(r"looked at \d{3,} pods.* in ([\d.]+) s", site.log.read_text())]
    say(f"{count} pending pods: longest look {max(looks):.3f} s, last {looks[-1]:.3f} s")
    say(f"memory of the provisioner, before and every half minute: {', '.join(map(str, memory))} MiB")
    say(f"jobs in the queue: {len(site.run('squeue', '--me', '--noheader').splitlines())}")
    site.kubectl("delete", "job", "pending")


def kill(site: Site, count: int = 100, kills: int = 50) -> None:
    moments = random.Random(5)  # noqa: S311 - the same in every run
    site.apply("kill", count, "1")
    for number in range(kills):
        pid = provisioner(site)
        time.sleep(moments.uniform(0.1, 4.0))  # it takes half a second to begin
        site.bed.run(["kill", "-KILL", pid], on="n1", check=False)
        if number == kills // 2:
            site.bed.restart("slurmctld")
    site.wait_done("kill", 1200)
    status = site.json("get", "job", "kill")["status"]
    time.sleep(15)
    rows = site.run("sacct", "-X", "--noheader", "--parsable2", "--format=JobID,JobName,State,Elapsed").splitlines()
    table = [row.split("|") for row in rows if "|kill-" in row]
    ran = {f"job-{number}" for number, _, _, elapsed in table if elapsed != "00:00:00"}
    used = Counter(pod["spec"]["nodeName"] for pod in site.json("get", "pods", "-l", "job-name=kill")["items"])
    left = [line for line in site.run("squeue", "--me", "--noheader", "--format=%j %T").splitlines() if "kill-" in line]
    say(f"{kills} kills: {status.get('succeeded')} of {count} pods succeeded, {status.get('failed', 0)} failed")
    say(f"{used.total()} pods were bound, to {len(used)} jobs; of these accounting has {len(used.keys() & ran)}")
    say(f"jobs that ran and found their pod taken: {len(ran - used.keys())}; left in the queue: {left}")
    say(f"states: {dict(Counter(state.split()[0] for _, _, state, _ in table))}")
    site.kubectl("delete", "job", "kill")


def main() -> int:
    chosen = sys.argv[1:] or ["latency", "rate", "pending", "kill"]
    bed = Bed.up(Plan(hosts=4, fast=not os.environ.get("USUAL")), STATE)
    try:
        install(bed, PROJECT, share=user_root().parent)
        site = Site(bed)
        for image in ("busybox", "nettools"):
            shutil.copy(build_image(image), site.home / f"{image}.tar")
            site.run("pinnace", "image", "load", f"{image}.tar")
        site.run("pinnace", "up", "--pods-as-jobs", "-w", "n1")
        for name in chosen:
            {"latency": latency, "rate": rate, "pending": pending, "kill": kill}[name](site)
        say(site.run("pinnace", "down"))
    finally:
        bed.down()
    return 0


if __name__ == "__main__":
    sys.exit(main())
