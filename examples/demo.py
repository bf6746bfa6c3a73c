"""The demo of `make demo`: a Slurm of two hosts on this machine, and what an ordinary user does on it.

It uses a test bed of its own and leaves nothing behind, however it ends.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from pinnace.components.store import user_root
from testbed import Bed
from testbed.errors import BedError
from testbed.images import build_image
from testbed.plan import Plan
from testbed.software import install
from testbed.state import Directories

PROJECT = Path(__file__).parents[1]
STATE = Directories(state=Path("/var/lib/testbed-demo"))
LIMIT = 180.0

STORY = (
    ("Two hosts of a Slurm cluster, seen by alice, who is an ordinary user:", ["sinfo"]),
    (
        "A job of hers over both hosts:",
        ["srun", "-N2", "--label", "bash", "-c", "echo $(id -un) on $(hostname), $(nproc) CPUs, home is $HOME"],
    ),
    ("The components that her site has installed for everybody:", ["pinnace", "fetch", "--list"]),
    (
        "A Kubernetes of two nodes in a job of hers, a workload in it, and its end:",
        ["pinnace", "run", "-N", "2", "-t", "10", "--image", "busybox.tar", "hello.yaml"],
    ),
    ("What accounting knows of it:", ["sacct", "-X", "--format=JobID,JobName%30,NNodes,Elapsed,State,ExitCode"]),
)


def main() -> int:
    begin = time.monotonic()
    try:
        bed = Bed.up(Plan(hosts=2, fast=True), STATE)
    except BedError as error:
        print(f"{error.message}\n{error.hint}", file=sys.stderr)  # noqa: T201
        return 1
    try:
        install(bed, PROJECT, share=user_root().parent)
        home = STATE.home / "alice"
        shutil.copy(PROJECT / "examples" / "hello.yaml", home)
        shutil.copy(build_image("busybox"), home / "busybox.tar")
        for text, argv in STORY:
            print(f"\n# {text}\nalice@login$ {' '.join(argv)}", flush=True)  # noqa: T201
            code = subprocess.run(bed.command(argv), check=False, timeout=LIMIT).returncode
            if code:
                return code
    finally:
        bed.down()
    print(f"\n# All of it is gone again, after {time.monotonic() - begin:.0f} s.")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
