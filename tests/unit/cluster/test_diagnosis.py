from __future__ import annotations

import pytest

from pinnace.cluster.diagnosis import describe_end
from pinnace.slurm.commands import parse_rows


@pytest.mark.parametrize(
    ("state", "message", "hint"),
    [
        ("TIMEOUT", "the time limit (1:00) ended the job 12", "-t"),
        ("OUT_OF_MEMORY", "the job 12 used more memory than it had", "--mem"),
        ("CANCELLED", "the job 12 was cancelled", ""),
        ("NODE_FAIL", "the job 12 ended, because a host failed", ""),
        ("FAILED", "the job of the cluster c has ended", ""),
    ],
)
def test_a_cluster_that_has_ended_says_why(state: str, message: str, hint: str) -> None:
    fields = f"12|1000|{state}|None|N/A|n1|main|0:00|1:00|1:01|1|n|".split("|")
    (job,) = parse_rows("mark>" + "mark,".join(fields), "mark")
    said, advice = describe_end("c", job, ready=True)
    assert said.startswith(message)
    assert hint in advice
    said, _ = describe_end("c", job, ready=False)
    assert "before the cluster was ready" in said


def test_a_cluster_without_a_job_has_just_ended() -> None:
    assert describe_end("c", None, ready=True) == ("the cluster c has ended", "")
