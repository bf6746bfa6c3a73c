"""squeue and sacct as far as clean-up needs them: they print the jobs of a file, and fail on what they do not know."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SQUEUE = """
given = dict(arg.partition("=")[::2] for arg in sys.argv[1:])
wanted = sys.argv[sys.argv.index("--jobs") + 1].split(",") if "--jobs" in sys.argv else None
assert sys.argv[1:3] == ["--noheader", "--states=all"], sys.argv
assert wanted or sys.argv[-1] == "--me", sys.argv
found = [job for job in jobs if not job.get("forgotten") and (not wanted or str(job["id"]) in wanted)]
if wanted and not found:
    sys.exit("slurm_load_jobs error: Invalid job id specified")
for job in found:
    known = {"JobArrayID": job["id"], "UserID": job["uid"], "State": job["state"], "Comment": job["comment"]}
    fields = (field.split(":0") for field in given["--Format"].split(","))
    print("".join(str(known.get(name, "0")) + word for name, word in fields))
"""
SACCT = """
given = dict(arg.partition("=")[::2] for arg in sys.argv[1:])
for job in jobs:
    if str(job["id"]) in given["--jobs"].split(","):
        known = {"JobID": job["id"], "State": job["state"], "SubmitLine": "srun --comment=" + job["comment"]}
        print("".join(str(known.get(name, "")) + given["--delimiter"] for name in given["--format"].split(",")))
"""


class FakeSlurm:
    """The jobs that these commands show."""

    def __init__(self, directory: Path) -> None:
        self.bin = directory / "bin"
        self._jobs = directory / "jobs.json"
        self.bin.mkdir()
        self.show()
        for name, text in (("squeue", SQUEUE), ("sacct", SACCT)):
            begin = f"#!{sys.executable}\nimport json, sys\njobs = json.load(open({str(self._jobs)!r}))\n"
            (self.bin / name).write_text(begin + text)
            (self.bin / name).chmod(0o755)

    def show(self, *jobs: dict[str, object]) -> None:
        usual = {"id": 7, "uid": os.getuid(), "comment": "pinnace:mine"}
        self._jobs.write_text(json.dumps([usual | job for job in jobs]))

    def stop(self) -> None:
        """From now on nobody answers."""
        for name in ("squeue", "sacct"):
            (self.bin / name).write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
