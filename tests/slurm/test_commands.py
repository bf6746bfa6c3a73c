from __future__ import annotations

import pytest

from pinnace.errors import SlurmError
from pinnace.slurm.commands import Slurm, batch_script, parse_job, submission_environment
from pinnace.slurm.states import JobState, Phase


def test_a_line_of_squeue_becomes_a_job() -> None:
    fields = [
        "12",
        "pinnace-a",
        "PENDING",
        "Resources",
        "2026-11-15T10:00:00",
        "",
        "main",
        "10:00",
        "20:00",
        "0:00",
        "2",
        "c",
    ]
    job = parse_job("\x1f".join(fields))
    assert (job.id, job.state, job.reason, job.start, job.comment) == (12, "PENDING", "Resources", fields[4], "c")
    assert (job.time_left, job.time_limit) == ("10:00", "20:00")


def test_what_squeue_does_not_know_is_empty() -> None:
    job = parse_job("7_3|n|RUNNING|None|N/A|n1|main|1|2|1|1|(null)".replace("|", "\x1f"))
    assert (job.id, job.start, job.comment) == (7, "", "")


@pytest.mark.parametrize(
    ("text", "state", "phase"),
    [
        ("PENDING", JobState.PENDING, Phase.WAITING),
        ("CONFIGURING", JobState.CONFIGURING, Phase.WAITING),
        ("RUNNING", JobState.RUNNING, Phase.RUNNING),
        ("CANCELLED by 1000", JobState.CANCELLED, Phase.ENDED),
        ("CANCELLED+", JobState.CANCELLED, Phase.ENDED),
        ("NODE_FAIL", JobState.NODE_FAIL, Phase.ENDED),
        ("COMPLETING", JobState.COMPLETING, Phase.ENDED),
    ],
)
def test_every_state_has_a_phase(text: str, state: JobState, phase: Phase) -> None:
    assert JobState.parse(text) is state
    assert state.phase is phase


def test_the_enclosing_jobs_words_stay_out_of_a_submission() -> None:
    mine = {"SLURM_JOB_ID": "1", "SLURM_MEM_PER_NODE": "5", "SLURM_CONF": "/c", "SBATCH_ACCOUNT": "a", "HOME": "/h"}
    assert submission_environment(mine) == {"SLURM_CONF": "/c", "SBATCH_ACCOUNT": "a", "HOME": "/h"}


def test_a_batch_script_has_its_directives_first() -> None:
    script = batch_script(["--job-name=a"], "exec true")
    assert script == "#!/bin/bash -l\n#SBATCH --job-name=a\n\nexec true\n"


def test_a_machine_without_slurm_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SlurmError, match="there is no `squeue` here") as caught:
        Slurm().squeue()
    assert "--local" in caught.value.hint
