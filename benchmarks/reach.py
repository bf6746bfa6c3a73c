"""kubectl through a step of the job, against a kubectl that reaches the API directly, in turn.

    .venv/bin/python benchmarks/reach.py [ROUNDS]

The bed has a firewall: the login host reaches the API through Slurm alone. The direct way is from the host that is not
the API server's. Medians of interleaved rounds, all figures, and the ratio.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from pinnace.components.store import user_root
from testbed import Bed
from testbed.firewall import USER_PORTS
from testbed.images import build_image
from testbed.plan import Plan
from testbed.software import install
from testbed.state import Directories

if TYPE_CHECKING:
    from collections.abc import Callable

PROJECT = Path(__file__).parents[1]
STATE = Directories(state=Path("/var/lib/testbed-bench-reach"))
CLUSTER = ".local/share/pinnace/clusters/measured"
AT_ONCE = 20
# The kubelet rotates logs of 10 MiB, and who follows one that grows fast loses what was rotated away: parts of 9 MB.
LOG_PARTS, PART_BYTES = 11, 9_091_000
LINE = "x" * 99
POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{of: {of}}}}}
spec:
  restartPolicy: Never
  containers:
  - {{name: main, image: localhost/pinnace-test/busybox:1, command: [sh, -c, "{command}"]}}
"""


def direct_kubeconfig(home: Path) -> None:
    """The administrator's, with the address that compute hosts reach."""
    directory = home / CLUSTER
    document = json.loads((directory / "secrets/admin.kubeconfig").read_text())
    head = json.loads((directory / "nodes/0.json").read_text())
    server = f"https://{head['address']}:{head['api']}"
    name = (directory / "secrets/api.name").read_text()
    document["clusters"][0]["cluster"] |= {"server": server, "tls-server-name": name}
    (home / "direct").write_text(json.dumps(document))


class Way:
    """kubectl on a host, with a kubeconfig."""

    def __init__(self, bed: Bed, name: str, host: str, kubeconfig: str) -> None:
        self.name = name
        about = json.loads((STATE.home / "alice" / CLUSTER / "cluster.json").read_text())
        self.argv = bed.command([about["binaries"]["kubectl"], f"--kubeconfig=/home/alice/{kubeconfig}"], on=host)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*self.argv, *words], stdout=subprocess.PIPE)

    def seconds(self, *words: str) -> float:
        begin = time.monotonic()
        subprocess.run([*self.argv, *words], capture_output=True, check=True, timeout=120)
        return time.monotonic() - begin

    def at_once(self) -> float:
        begin = time.monotonic()
        for process in [self.start("get", "pods") for _ in range(AT_ONCE)]:
            if b"quiet" not in process.communicate(timeout=120)[0]:
                raise RuntimeError("no pod")
        return time.monotonic() - begin

    def logs(self) -> float:
        """The logs of all parts, from the command to the last byte."""
        begin = time.monotonic()
        argv = [*self.argv, "logs", "--selector=of=log", "--tail=-1", f"--max-log-requests={LOG_PARTS}"]
        count = len(subprocess.run(argv, capture_output=True, check=True, timeout=120).stdout)
        if count != LOG_PARTS * PART_BYTES:
            raise RuntimeError(f"a log of {count} bytes")
        return time.monotonic() - begin

    def beside_log(self) -> float:
        """An exec while a log comes; the log is not waited for."""
        log = self.start("logs", "part-0")
        try:
            if log.stdout is None or not log.stdout.read(1 << 20):
                raise RuntimeError("no log")
            return self.seconds("exec", "quiet", "--", "echo", "x")
        finally:
            log.kill()
            log.communicate()


def compare(name: str, measure: Callable[[Way], float], ways: list[Way], rounds: int) -> None:
    values: dict[str, list[float]] = {way.name: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            values[way.name].append(measure(way))
    through, direct = (median(values[way.name]) for way in ways)
    print(
        f"{name:32} {through:6.2f} s through Slurm, {direct:6.2f} s directly, ratio {through / direct:.2f}   {values}"
    )


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    bed = Bed.up(Plan(hosts=2, fast=True, firewall=True), STATE)
    try:
        install(bed, PROJECT, share=user_root().parent)
        home = STATE.home / "alice"
        shutil.copy(build_image("busybox"), home / "busybox.tar")
        options = ["-N", "2", "--name", "measured", "--ports", USER_PORTS, "--image", "busybox.tar"]
        bed.run(["pinnace", "up", *options], timeout=180)
        direct_kubeconfig(home)
        parts = [f"part-{number}" for number in range(LOG_PARTS)]
        write = f"yes {LINE} | head -c {PART_BYTES}"
        pods = [POD.format(name="quiet", of="nothing", command="sleep 100000"),
                *(POD.format(name=name, of="log", command=write) for name in parts)]  # fmt: skip
        bed.run(["pinnace", "kubectl", "apply", "-f", "-"], input="---".join(pods), timeout=60)
        for name in parts:
            ended = ["wait", "--for=jsonpath={.status.phase}=Succeeded", f"pod/{name}", "--timeout=120s"]
            bed.run(["pinnace", "kubectl", *ended], timeout=150)
        bed.run(["pinnace", "kubectl", "wait", "--for=condition=Ready", "pod/quiet"], timeout=120)
        ways = [Way(bed, "tunnel", "login", f"{CLUSTER}/kubeconfig"), Way(bed, "direct", "n2", "direct")]
        compare("get", lambda way: way.seconds("get", "pods"), ways, 3 * rounds)
        compare("exec", lambda way: way.seconds("exec", "quiet", "--", "echo", "x"), ways, rounds)
        compare("exec beside a log", Way.beside_log, ways, rounds)
        compare(f"{AT_ONCE} gets at once", Way.at_once, ways, rounds)
        compare("logs of 100 MB", Way.logs, ways, rounds)
        bed.run(["pinnace", "down"], timeout=120)
    finally:
        bed.down()
    return 0


if __name__ == "__main__":
    sys.exit(main())
