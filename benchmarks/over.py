"""Clusters in a job, measured against the bare machine in the same run.

    .venv/bin/python benchmarks/over.py [ROUNDS]

Start-up: from `pinnace run` to the first line of the workload, for one node and for two, on an idle test bed with the
scheduler's own delay switched off. Network: TCP of one stream between two hosts and between two pods on them, in turn.
Medians, and all figures.
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
STATE = Directories(state=Path("/var/lib/testbed-bench"))
SECONDS = 4
IPERF = ["iperf3", "--json", "--time", str(SECONDS), "--client"]
SERVER = """
apiVersion: v1
kind: Pod
metadata: {name: %(name)s}
spec:
  nodeName: %(node)s
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: "localhost/pinnace-test/nettools:1", command: [iperf3, --server]}]
"""


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def figures(name: str, values: list[float], unit: str) -> float:
    middle = median(values)
    say(f"{name:36} {middle:7.2f} {unit}   ({', '.join(f'{value:.2f}' for value in values)})")
    return middle


def first_line(bed: Bed, nodes: int) -> float:
    """Seconds from the command to the first line of a container."""
    argv = bed.command(["pinnace", "run", "-N", str(nodes), "-t", "10", "--image", "busybox.tar", "hello.yaml"])
    begin = time.monotonic()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        if process.stdout is None or not process.stdout.readline():
            raise RuntimeError("the workload said nothing")
        taken = time.monotonic() - begin
        process.communicate(timeout=120)
    return taken


def gigabits(output: str) -> float:
    rate: float = json.loads(output)["end"]["sum_received"]["bits_per_second"] / 1e9
    return rate


def network(bed: Bed, rounds: int) -> None:
    def kubectl(*words: str) -> str:
        return bed.run(["pinnace", "kubectl", *words], timeout=120).stdout

    bed.run(["pinnace", "up", "-N", "2", "--mem", "4G", "--image", "nettools.tar"], timeout=120)
    for name, node in (("server", "n1"), ("client", "n2")):
        (STATE.home / "alice" / "pod.yaml").write_text(SERVER % {"name": name, "node": node})
        kubectl("apply", "-f", "pod.yaml")
    kubectl("wait", "--for=condition=Ready", "pod/server", "pod/client", "--timeout=60s")
    address = json.loads(kubectl("get", "pod", "server", "-o", "json"))["status"]["podIP"]
    bare, pods = [], []
    with bed.popen(["iperf3", "--server"], on="n1", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        time.sleep(1)
        for _ in range(rounds):
            bare.append(gigabits(bed.run([*IPERF, "n1"], on="n2").stdout))
            pods.append(gigabits(kubectl("exec", "client", "--", *IPERF, address)))
        server.terminate()
    host = figures("TCP, host to host", bare, "Gbit/s")
    pod = figures("TCP, pod to pod", pods, "Gbit/s")
    say(f"{'of bare':36} {pod / host:7.2f}")
    bed.run(["pinnace", "down"], timeout=120)


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    bed = Bed.up(Plan(hosts=2, fast=True), STATE)
    try:
        install(bed, PROJECT, share=user_root().parent)
        home = STATE.home / "alice"
        shutil.copy(PROJECT / "examples" / "hello.yaml", home)
        for image in ("busybox", "nettools"):
            shutil.copy(build_image(image), home / f"{image}.tar")
        network(bed, rounds)
        for nodes in (1, 2):
            figures(f"first line, {nodes} node(s)", [first_line(bed, nodes) for _ in range(rounds)], "s")
    finally:
        bed.down()
    return 0


if __name__ == "__main__":
    sys.exit(main())
