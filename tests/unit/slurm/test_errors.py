"""What Slurm's words mean."""

from __future__ import annotations

import pytest

from pinnace.errors import SlurmError, SlurmNotFoundError, SlurmSubmitLimitError, SlurmUnreachableError
from pinnace.slurm.errors import command_error, is_transient

POLICY = (
    "sbatch: error: Batch job submission failed: "
    "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
            SlurmUnreachableError,
        ),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", SlurmUnreachableError),
        ("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying", SlurmUnreachableError),
        ("sbatch: error: AssocMaxSubmitJobLimit", SlurmSubmitLimitError),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit", SlurmSubmitLimitError),
        (f"sbatch: error: AssocMaxSubmitJobLimit\n{POLICY}", SlurmSubmitLimitError),
        (POLICY, SlurmSubmitLimitError),
        (f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{POLICY}", SlurmError),
        (f"sbatch: error: QOSMaxGRESPerJob\n{POLICY}", SlurmError),
        ("sbatch: error: Batch job submission failed: No route to host", SlurmUnreachableError),
        ("sbatch: error: Batch job submission failed: Unspecified error", SlurmUnreachableError),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", SlurmUnreachableError),
        ("sbatch: error: invalid partition specified: No route to host", SlurmError),
        ("sbatch: error: invalid partition specified: maxjob", SlurmError),
        ("sbatch: error: Invalid --time specification: try again", SlurmError),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", SlurmError),
        ("sbatch: error: invalid partition specified: nope", SlurmError),
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination", SlurmError),
    ],
)
def test_only_sbatchs_own_verdict_decides_when_to_try_again(text: str, expected: type[SlurmError]) -> None:
    assert type(command_error(["sbatch", "--parsable"], 1, stderr=text)) is expected


@pytest.mark.parametrize(
    ("command", "text", "expected"),
    [
        ("sacct", "sacct: error: Problem talking to the database: Connection refused", SlurmUnreachableError),
        ("squeue", "slurm_load_jobs error: Unable to contact slurm controller", SlurmUnreachableError),
        ("squeue", "slurm_load_jobs error: No route to host", SlurmUnreachableError),
        ("squeue", "slurm_load_jobs error: Invalid job id specified", SlurmNotFoundError),
        ("scancel", "scancel: error: Kill job error on job id 5: Job/step already completing or completed",
         SlurmNotFoundError),
        ("scancel", "scancel: error: Kill job error on job id 5: Access/permission denied", SlurmError),
        ("sacct", "sacct: error: Slurm accounting storage is disabled", SlurmError),
    ],
)  # fmt: skip
def test_what_other_commands_say(command: str, text: str, expected: type[SlurmError]) -> None:
    error = command_error([command], 1, stderr=f"{text}\n")
    assert type(error) is expected
    assert (error.message, error.argv, error.returncode) == (f"{command}: {text}", (command,), 1)


@pytest.mark.parametrize("words", ["sbatch: error: Batch job submission failed: Unable to contact slurm controller",
                                   "sacct: error: Problem talking to the database: Connection refused",
                                   "`squeue` did not answer for 60 s"])  # fmt: skip
def test_what_may_pass_is_not_a_refusal(words: str) -> None:
    assert is_transient(words)
    assert not is_transient("sbatch: error: invalid partition specified: nope")


def test_a_command_that_says_nothing_has_an_exit_code() -> None:
    assert command_error(["scontrol"], 7).message == "scontrol: exit code 7"
