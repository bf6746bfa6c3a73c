from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from pinnace.errors import SlurmError, SlurmUnreachableError, UsageError
from pinnace.slurm.commands import Slurm, parse_batch_sched_delay
from pinnace.slurm.jobs import SACCT, SQUEUE
from pinnace.slurm.states import JobState

if TYPE_CHECKING:
    from pathlib import Path


FAKE_SACCT = f"""#!{sys.executable}
import sys
args = dict(arg.partition("=")[::2] for arg in sys.argv[1:])
fields = args["--format"].split(",")
assert fields == {list(SACCT)!r}, args
rows = [{{"JobID": "7", "State": "CANCELLED by 0", "Comment": "a\\n8|FAILED|", "SubmitLine": "sbatch --parsable"}},
        {{"JobID": "9_3", "State": "TIMEOUT", "SubmitLine": "sbatch --comment=x\\n"}}]
for row in rows:
    print("".join(row.get(field, "") + args["--delimiter"] for field in fields))
open(sys.argv[0] + ".asked", "a").write(args["--jobs"] + "\\n")
"""


def test_accounting_is_asked_once_for_all_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sacct").write_text(FAKE_SACCT)
    (tmp_path / "sacct").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert Slurm().sacct() == []
    first, second = Slurm().sacct(7, 8, 9)
    assert (first.id, first.state, first.comment) == (7, JobState.CANCELLED, "a\n8|FAILED|")
    assert (second.id, second.state, second.submit_line) == (9, JobState.TIMEOUT, "sbatch --comment=x")
    assert (tmp_path / "sacct.asked").read_text() == "7,8,9\n"


def fake_slurm(directory: Path, jobs: list[dict[str, str]]) -> None:
    """Commands that answer as Slurm's do: squeue in the format that it is asked for, scancel into a file."""
    squeue = f"""#!{sys.executable}
import sys
form = next(arg for arg in sys.argv if arg.startswith("--Format=")).removeprefix("--Format=")
known = dict.fromkeys({SQUEUE!r}, "") | {{"State": "RUNNING", "StartTime": "N/A", "NumNodes": "1"}}
for job in {jobs!r}:
    for field in form.split(","):
        name, _, suffix = field.partition(":0")
        print((known | job)[name], end=suffix)
    print()
"""
    scancel = f'#!/bin/sh\necho "$@" >> {directory}/cancelled\n'
    for name, script in (("squeue", squeue), ("scancel", scancel)):
        (directory / name).write_text(script)
        (directory / name).chmod(0o755)


def test_only_what_is_proven_to_be_ours_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are given again: by now they may be jobs of others, or other jobs of the same user."""
    mine, other = str(os.getuid()), str(os.getuid() + 1)
    jobs = [
        {"JobArrayID": "1", "UserID": mine, "Name": "a", "Comment": "pinnace:a"},
        {"JobArrayID": "2", "UserID": other, "Name": "a", "Comment": "pinnace:a"},
        {"JobArrayID": "3", "UserID": mine, "Name": "pinnace-a", "Comment": "thesis"},
    ]
    fake_slurm(tmp_path, jobs)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert Slurm().cancel(1, 2, 3, ours=lambda comment: comment == "pinnace:a") == [1]
    assert (tmp_path / "cancelled").read_text() == "1\n"
    assert Slurm().cancel(ours=lambda _: True) == []


@pytest.mark.parametrize("text", ["a\nb", "a\x1fb", "a\x0bb", "a\x85b", "a\u2028b", "a\0b", "a\x7fb"])
def test_names_and_comments_that_we_give_have_no_control_characters(text: str) -> None:
    with pytest.raises(UsageError, match="cannot be printed"):
        Slurm().rename(1, "name", text)
    with pytest.raises(UsageError, match="cannot be printed"):
        Slurm().rename(1, text, "comment")


def test_a_machine_without_slurm_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SlurmError, match="there is no `squeue` here") as caught:
        Slurm().squeue()
    assert "--local" in caught.value.hint


def fake(directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    (directory / name).write_text(f"#!/bin/sh\n{script}\n")
    (directory / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(directory), prepend=":")


def test_an_error_says_what_was_called_and_what_it_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, "sbatch", "echo out; echo 'sbatch: error: invalid partition specified: x' >&2; exit 3")
    with pytest.raises(SlurmError, match="invalid partition specified: x") as caught:
        Slurm().sbatch("", ["--partition=x"])
    error = caught.value
    assert error.argv == ("sbatch", "--parsable", "--partition=x")
    assert (error.returncode, error.stdout) == (3, "out\n")
    assert error.stderr == "sbatch: error: invalid partition specified: x\n"
    assert "sinfo" in error.hint


def test_a_command_that_hangs_may_answer_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, "sbatch", "exec sleep 60")
    monkeypatch.setattr("pinnace.slurm.commands.COMMAND_LIMIT", 0.2)
    with pytest.raises(SlurmUnreachableError, match="`sbatch` did not answer"):
        Slurm().sbatch("", [])


def test_a_job_that_slurm_has_forgotten_is_in_no_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    fake(
        tmp_path, monkeypatch, "scancel", "echo 'scancel: error: Job/step already completing or completed' >&2; exit 1"
    )
    assert Slurm().squeue(12) == []
    Slurm().scancel(12)


def test_sbatch_may_print_the_cluster_too_but_a_number_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, "sbatch", "echo '12;cluster'")
    assert Slurm().sbatch("", []) == 12
    fake(tmp_path, monkeypatch, "sbatch", "echo submitted")
    with pytest.raises(SlurmError, match="told no job's number: submitted"):
        Slurm().sbatch("", [])


def test_that_there_is_no_job_at_all_is_believed_if_it_is_said_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_slurm(tmp_path, [{"JobArrayID": "1", "UserID": str(os.getuid()), "Comment": "pinnace:a"}])
    (tmp_path / "squeue").rename(tmp_path / "answers")
    (tmp_path / "squeue").write_text(f'#!/bin/sh\ncd {tmp_path}\n[ -e asked ] && exec ./answers "$@"\n: > asked\n')
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert Slurm().squeue(certain=False) == []
    (tmp_path / "asked").unlink()
    assert [job.id for job in Slurm().squeue()] == [1]
    (tmp_path / "answers").write_text("#!/bin/sh\n")
    assert Slurm().squeue() == []


@pytest.mark.parametrize(
    ("parameters", "seconds"),
    [("batch_sched_delay=0,defer", 0), ("bf_interval=30,batch_sched_delay=12", 12), ("(null)", 3)],
)
def test_slurms_delay_before_it_looks_at_batch_jobs(parameters: str, seconds: int) -> None:
    config = f"SchedulerTimeSlice      = 30 sec\nSchedulerParameters     = {parameters}\nSchedulerType = x\n"
    assert parse_batch_sched_delay(config) == seconds
