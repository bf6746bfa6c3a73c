"""SlurmJobs measured against plain sbatch in the same run, and many of them at once.

    .venv/bin/python benchmarks/bridge.py [ROUNDS [JOBS]]

Latency: from the command (`sbatch`, `kubectl create`) to the first line of the job's script, in turn, on a test bed
with the scheduler's own delay switched off. Load: JOBS SlurmJobs in flight; what slurmctld and the API server are asked
in half a minute in which nothing changes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from pinnace.components.store import user_root
from testbed import Bed
from testbed.images import build_image
from testbed.plan import Plan
from testbed.software import install
from testbed.state import Directories

PROJECT = Path(__file__).parents[1]
STATE = Directories(state=Path("/var/lib/testbed-bench-bridge"))
SCRIPT = "#!/bin/bash\ndate +%s.%N > start\n"
QUIET = 30.0
LIMIT = 600.0


def say(text: str) -> None:
    print(text, flush=True)


def slurmjob(name: str, **options: str) -> str:
    options = {"memory": "10M", "time": "10"} | (options or {"workingDirectory": "/home/alice"})
    spec = {"script": SCRIPT, "logs": False, "options": options}
    head = {"apiVersion": "pinnace.dev/v1alpha1", "kind": "SlurmJob", "metadata": {"name": name}}
    return json.dumps({**head, "spec": spec})


class Bench:
    """alice on the login host, with a cluster and a bridge."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.home = STATE.home / "alice"
        cluster = ".local/share/pinnace/clusters/bench"
        kubectl = json.loads((self.home / cluster / "cluster.json").read_text())["binaries"]["kubectl"]
        self.kubectl = [kubectl, "--kubeconfig", f"{cluster}/kubeconfig"]

    def run(self, *argv: str) -> str:
        return self.bed.run(argv, timeout=LIMIT).stdout

    def until_start(self, argv: list[str]) -> float:
        """Seconds from a command to the first line of the job's script."""
        start = self.home / "start"
        start.unlink(missing_ok=True)
        begin = time.time()
        self.run(*argv)
        deadline = time.monotonic() + LIMIT
        while not (start.exists() and start.read_text().strip()):
            if time.monotonic() > deadline:
                raise TimeoutError("the job did not start")
            time.sleep(0.02)
        return float(start.read_text()) - begin

    def latency(self, rounds: int) -> None:
        (self.home / "plain.sh").write_text(SCRIPT)
        plain, bridged = [], []
        for number in range(rounds):
            plain.append(self.until_start(["sbatch", "--mem=10M", "--time=10", "plain.sh"]))
            (self.home / "job.json").write_text(slurmjob(f"latency-{number}"))
            bridged.append(self.until_start([*self.kubectl, "create", "-f", "job.json"]))
        for name, values in (("sbatch", plain), ("kubectl create of a SlurmJob", bridged)):
            say(f"{name:32} {median(values):6.2f} s   ({', '.join(f'{value:.2f}' for value in values)})")
        say(f"{'more than sbatch':32} {median(bridged) - median(plain):6.2f} s")

    def asked(self) -> tuple[int, int]:
        """How often slurmctld was asked for jobs, and how many requests the API server has had for SlurmJobs."""
        lines = [line.split() for line in self.run("sdiag").splitlines()]
        asked = [words for words in lines if words and words[0] in {"REQUEST_JOB_INFO", "REQUEST_JOB_USER_INFO"}]
        rpcs = sum(int(words[3].split(":")[1]) for words in asked if words[3].startswith("count:"))
        metrics = self.run(*self.kubectl, "get", "--raw", "/metrics").splitlines()
        mine = [line for line in metrics if line.startswith("apiserver_request_total{") and '"slurmjobs"' in line]
        return rpcs, int(sum(float(line.rsplit(" ", 1)[1]) for line in mine if 'verb="WATCH"' not in line))

    def load(self, jobs: int) -> None:
        bodies = [json.loads(slurmjob(f"many-{number}", begin="now+10hours")) for number in range(jobs)]
        (self.home / "many.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies}))
        begin = time.monotonic()
        self.run(*self.kubectl, "create", "-f", "many.json")
        created = time.monotonic() - begin
        while self.run("squeue", "--noheader", "--states=PENDING", "--format=%k").count("pinnace-bridge") < jobs:
            if time.monotonic() - begin > LIMIT:
                raise TimeoutError("not all jobs were submitted")
            time.sleep(1)
        say(f"{jobs} SlurmJobs: created in {created:.0f} s, all in Slurm after {time.monotonic() - begin:.0f} s")
        time.sleep(5)  # the last statuses
        before = self.asked()
        time.sleep(QUIET)
        after = self.asked()
        rpcs, requests = (now - then for now, then in zip(after, before, strict=True))
        say(f"in {QUIET:.0f} s without a change: {rpcs} questions to slurmctld, "
            f"{requests} requests to the API server about SlurmJobs")  # fmt: skip
        begin = time.monotonic()
        self.run(*self.kubectl, "delete", "slurmjobs.pinnace.dev", "--all", "--wait=false")
        while self.run(*self.kubectl, "get", "slurmjobs.pinnace.dev", "-o", "name"):
            if time.monotonic() - begin > LIMIT:
                raise TimeoutError("not all objects went")
            time.sleep(1)
        say(f"deleted, and ended in Slurm, in {time.monotonic() - begin:.0f} s")


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    jobs = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    bed = Bed.up(Plan(hosts=2, fast=True), STATE)
    try:
        install(bed, PROJECT, share=user_root().parent)
        shutil.copy(build_image("busybox"), STATE.home / "alice" / "busybox.tar")
        bed.run(["pinnace", "up", "--name", "bench", "--mem", "4G", "--image", "busybox.tar"], timeout=120)
        bench = Bench(bed)
        with bed.popen(
            ["pinnace", "bridge", "--name", "bench"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as bridge:
            deadline = time.monotonic() + 60
            while "slurmjobs.pinnace.dev" not in bench.run(*bench.kubectl, "api-resources", "-o", "name"):
                if time.monotonic() > deadline:
                    raise TimeoutError("the bridge does not start")
                time.sleep(0.5)
            bench.latency(rounds)
            bench.load(jobs)
            bridge.terminate()
        bed.run(["pinnace", "down", "bench"], timeout=120)
    finally:
        bed.down()
    return 0


if __name__ == "__main__":
    sys.exit(main())
