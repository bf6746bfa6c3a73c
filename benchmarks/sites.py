"""The matrix of sites: generations of Slurm and facts of sites, and whether each model works there.

    .venv/bin/python -m benchmarks.sites [--slurm 24.11]… [--flag private-tmp]…

For each bed: seconds from the command to the first line of the workload, of a cluster in a job on two nodes
(`pinnace run`), of a pod that is a job, and of a SlurmJob; or the sentence that says why not. Needs root; about 45
seconds for each bed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.components.store import user_root
from testbed import Bed
from testbed.errors import BedError
from testbed.firewall import USER_PORTS
from testbed.generations import GENERATIONS
from testbed.images import build_image
from testbed.plan import Plan
from testbed.software import install
from testbed.state import Directories

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROJECT = Path(__file__).parents[1]
STATE = Directories(state=Path(os.environ.get("TESTBED_BENCH_STATE", "/var/lib/testbed-bench")))
IMAGE = "localhost/pinnace-test/busybox:1"
LIMIT = 150.0  # seconds for each try
OPTIONS = ["-A", "research", "-t", "20"]
FLAGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "private-tmp": {"private_tmp": True},
    "noexec-tmp": {"noexec_tmp": True},
    "no-nft": {"no_nft": True},
    "stale-home": {"stale_home": True},
    "two-nets": {"two_nets": True},
    "job-submit": {"job_submit": True},
    "maintenance": {"maintenance": 60},
    "no-accounting": {"accounting": False},
    "memlock": {"memlock": "64K"},
    "nofile": {"nofile": 1024},
    "firewall": {"firewall": True},
}
SETTINGS = {"firewall": f'ports = "{USER_PORTS}"\n'}  # what administrators have to write into /etc/pinnace.toml
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "first"},
    "spec": {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": IMAGE, "command": ["echo", "first line"]}],
    },
}
JOB = {
    "apiVersion": "pinnace.dev/v1alpha1",
    "kind": "SlurmJob",
    "metadata": {"name": "first"},
    "spec": {"script": "#!/bin/sh\necho first line\n", "options": {"account": "research", "time": "5"}},
}


class Refused(Exception):  # noqa: N818 - that a site refuses something is a result here
    """Why a model does not work, in the last line of what was said."""


def run(bed: Bed, *argv: str) -> str:
    try:
        result = bed.run(argv, check=False, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise Refused(f"{argv[1]} did not end in {LIMIT:.0f} s") from None
    if result.returncode:
        raise Refused((result.stderr.strip().splitlines() or ["no word"])[-1])
    return result.stdout


def seconds_to_line(bed: Bed, argv: list[str]) -> float:
    """From the start of a command to the first line that it prints."""
    begun = time.monotonic()
    with bed.popen(argv) as process:
        line = process.stdout.readline() if process.stdout else ""
        took = time.monotonic() - begun
        rest = process.communicate(timeout=LIMIT)
    if not line:
        raise Refused((rest[1].strip().splitlines() or ["no word"])[-1])
    return took


def cluster_in_a_job(bed: Bed) -> float:
    (bed.directories.home / "alice/pod.yaml").write_text(json.dumps(POD))
    return seconds_to_line(bed, ["pinnace", "run", "-N", "2", *OPTIONS, "--image", "busybox.tar", "pod.yaml"])


def object_in_a_cluster(bed: Bed, body: dict[str, Any], *options: str) -> float:
    """Seconds from `kubectl apply` to the line in the log of an object's pod, in a cluster that is there."""
    (bed.directories.home / "alice/object.yaml").write_text(json.dumps(body))
    run(bed, "pinnace", "up", "--name", "matrix", *OPTIONS, "--image", "busybox.tar", *options)
    kubectl = ("pinnace", "kubectl", "--name", "matrix")
    try:
        deadline, begun = time.monotonic() + LIMIT, 0.0
        while time.monotonic() < deadline:
            with contextlib.suppress(Refused):
                if not begun:
                    started = time.monotonic()
                    run(bed, *kubectl, "apply", "-f", "object.yaml")
                    begun = started
                if "first line" in run(bed, *kubectl, "logs", "first"):
                    return time.monotonic() - begun
            time.sleep(0.2)
        raise Refused(f"no line in {LIMIT:.0f} s")
    finally:
        run(bed, "pinnace", "down", "matrix")


MODELS: dict[str, Callable[[Bed], float]] = {
    "cluster in a job": cluster_in_a_job,
    "pod as a job": lambda bed: object_in_a_cluster(bed, POD, "--pods-as-jobs"),
    "SlurmJob": lambda bed: object_in_a_cluster(bed, JOB, "--bridge", IMAGE),
}


@contextlib.contextmanager
def site(slurm: str, flag: str) -> Iterator[Bed]:
    bed = Bed.up(Plan(hosts=3, fast=True, slurm=slurm, **FLAGS[flag]), STATE)
    try:
        install(bed, PROJECT, share=user_root().parent)
        if settings := SETTINGS.get(flag):
            bed.run(["tee", "/etc/pinnace.toml"], user="root", input=settings)
        image = bed.directories.home / "alice/busybox.tar"
        shutil.copy(build_image("busybox"), image)
        image.chmod(0o644)
        yield bed
    finally:
        bed.down()


def main() -> None:
    parser = argparse.ArgumentParser(prog="sites")
    known = [generation.slurm for generation in GENERATIONS]
    parser.add_argument("--slurm", action="append", choices=known)
    parser.add_argument("--flag", action="append", choices=list(FLAGS))
    args = parser.parse_args()
    print(f"| Slurm | flag | {' | '.join(MODELS)} |\n{'| --- ' * (2 + len(MODELS))}|", flush=True)
    for slurm in args.slurm or known:
        for flag in args.flag or FLAGS:
            cells = []
            try:
                with site(slurm, flag) as bed:
                    for model in MODELS.values():
                        try:
                            cells.append(f"{model(bed):.1f} s")
                        except Refused as refusal:
                            cells.append(str(refusal))
            except BedError as error:
                cells = [f"no bed: {error.message.splitlines()[0]}"]
            print(f"| {slurm} | {flag} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
