"""What squeue, sacct, sinfo and slurmrestd say, understood."""

from __future__ import annotations

import base64
import json
import time

import pytest

from pinnace.bridge import commandline, rest
from pinnace.bridge.backend import Submission, UnreachableError
from pinnace.bridge.policy import Endpoint
from pinnace.slurm.states import JobState

S = "<separator>"


def test_a_line_of_squeue() -> None:
    words = ("12_[3-5%2]", "pinnace-bridge:u/1 mine", "PENDING", "Priority", "1970-01-01T00:01:40", "N/A", "N/A", "",
             "2", "0")  # fmt: skip
    [report] = commandline.parse_queue("".join(word.rjust(30) + S for word in words) + "\n", S, "alice")
    assert (report.id, report.task, report.tag) == (12, "[3-5%2]", "pinnace-bridge:u/1")
    assert (report.submitted, report.start, report.node_count) == (100, 0, 2)


def sacct(*lines: tuple[str, ...]) -> str:
    return "".join("".join(word + S for word in line) + "\n" for line in lines)


def test_what_sacct_says_of_a_job_and_of_its_steps() -> None:
    times = ("1970-01-01T00:00:10", "1970-01-01T00:00:20", "1970-01-01T00:01:00")
    line = "sbatch --parsable --comment=pinnace-bridge:u/1"
    text = sacct(
        ("7", "CANCELLED by 2001", *times, "n1", "1", "0:15", "40", "00:02.500", "", "cpu=1", line),
        ("7.batch", "CANCELLED", *times, "n1", "1", "0:15", "40", "00:02.500", "3K", "", ""),
        ("9_0", "COMPLETED", *times, "n1", "1", "0:0", "40", "00:01", "", "cpu=1", ""),
        ("9_1", "FAILED", *times, "n1", "1", "3:0", "40", "1-00:00:01", "", "cpu=1", ""),
    )  # fmt: skip
    found = commandline.parse_accounted(text, S)
    assert found[7].reports[0].state is JobState.CANCELLED
    assert found[7].reports[0].status == 15
    assert found[7].reports[0].tag == "pinnace-bridge:u/1"
    assert (found[7].elapsed, found[7].cpu, found[7].memory) == (40, 2.5, 3072)
    assert [report.task for report in found[9].reports] == ["0", "1"]
    assert found[9].cpu == 86402


def test_partitions_of_sinfo() -> None:
    text = (
        "main|2|8|8000|1-00:00:00|cpu,rack1|up\nmain|1|4|4000|1-00:00:00|gpu|up\nlong|1|8|8000|infinite|(null)|down\n"
    )
    main, long = commandline.parse_partitions(text)
    assert (main.nodes, main.cpus, main.memory, main.minutes) == (3, 4, 4000, 1440)
    assert main.features == ("cpu", "gpu", "rack1")
    assert (long.minutes, long.features, long.up) == (None, (), False)


@pytest.mark.parametrize("words", ["sbatch: error: Batch job submission failed: Unable to contact slurm controller",
                                   "sacct: error: Problem talking to the database: Connection refused",
                                   "`squeue` did not answer for 60 s"])  # fmt: skip
def test_what_may_pass_is_not_a_refusal(words: str) -> None:
    assert commandline.PASSING.search(words)
    assert not commandline.PASSING.search("sbatch: error: invalid partition specified: nope")


def test_an_expired_token_is_not_even_sent() -> None:
    payload = base64.urlsafe_b64encode(json.dumps({"exp": int(time.time()) - 60}).encode()).decode().rstrip("=")
    with pytest.raises(UnreachableError, match="expired at"):
        rest.Rest(Endpoint.parse("http://192.0.2.1:1"), "alice", f"x.{payload}.y").jobs()
    assert rest.expiry("no token at all") is None


def test_a_submission_in_old_and_new_forms() -> None:
    submission = Submission(
        tag="pinnace-bridge:u/1", script="#!/bin/sh\n", arguments=("a",),
        options={"--nodes": "1-2", "--mem": "1G", "--time": "5"}, environment={"A": "b"},
    )  # fmt: skip
    old, new = rest.properties(submission, "v0.0.38"), rest.properties(submission, "v0.0.40")
    assert (old["nodes"], old["memory_per_node"], old["environment"]["A"]) == ([1, 2], 1024, "b")
    assert (new["nodes"], new["memory_per_node"]) == ("1-2", {"set": True, "number": 1024})
    assert "A=b" in new["environment"]
    assert "argv" not in old


def test_a_job_in_old_and_new_forms() -> None:
    old = {"job_id": 23, "array_job_id": 22, "array_task_id": 0, "array_task_string": "", "job_state": "COMPLETED",
           "comment": "pinnace-bridge:u/1", "exit_code": 768, "start_time": 5}  # fmt: skip
    new = {"job_id": 23, "array_job_id": {"set": True, "number": 22}, "array_task_id": {"set": True, "number": 0},
           "array_task_string": "", "job_state": ["COMPLETED"], "comment": "pinnace-bridge:u/1",
           "exit_code": {"return_code": {"set": True, "number": 3}, "signal": {}},
           "start_time": {"set": True, "number": 5}}  # fmt: skip
    assert rest.parse_job(old) == rest.parse_job(new)
    assert (rest.parse_job(old).id, rest.parse_job(old).task, rest.parse_job(old).status) == (22, "0", 768)
