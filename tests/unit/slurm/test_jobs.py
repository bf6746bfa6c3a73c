"""What squeue and sacct print, understood; rows that are forged."""

from __future__ import annotations

import pytest

from pinnace.errors import SlurmError
from pinnace.slurm.jobs import SQUEUE, parse_sacct, parse_squeue, parse_status, separator, squeue_format
from pinnace.slurm.states import JobState

MARK = "<0123456789abcdef>"
FIELDS = {"JobArrayID": "12", "UserID": "1000", "State": "PENDING", "Reason": "Resources",
          "SubmitTime": "1970-01-01T00:01:40", "StartTime": "1970-01-01T00:03:20", "EndTime": "N/A", "NodeList": "",
          "NumNodes": "2", "exit_code": "0", "Partition": "main", "TimeLeft": "10:00", "TimeLimit": "20:00",
          "TimeUsed": "0:00", "Name": "n", "Comment": "c"}  # fmt: skip


def row(**fields: str) -> str:
    """A row as squeue prints it in our format."""
    known = FIELDS | fields
    return "".join(f"{known[name]}{MARK}" for name in SQUEUE) + "\n"


def test_every_field_is_asked_for_whole() -> None:
    assert squeue_format(MARK).split(",") == [f"{name}:0{MARK}" for name in SQUEUE]


def test_a_row_of_squeue_becomes_a_job() -> None:
    (job,) = parse_squeue(row(Name="pinnace-a", exit_code="768"), MARK)
    assert (job.id, job.uid, job.name, job.state, job.reason) == (12, 1000, "pinnace-a", "PENDING", "Resources")
    assert (job.submitted, job.start, job.end) == (100, 200, 0)
    assert (job.time_left, job.time_limit, job.time_used) == ("10:00", "20:00", "0:00")
    assert (job.nodes, job.node_count, job.comment, job.status) == ("", 2, "c", 768)


def test_what_squeue_does_not_know_is_empty() -> None:
    (job,) = parse_squeue(row(JobArrayID="7_3", Comment="(null)", StartTime="N/A", NumNodes="1-2"), MARK)
    assert (job.id, job.task, job.start, job.comment, job.node_count) == (7, "3", 0, "", 0)


@pytest.mark.parametrize(
    ("number", "task"),
    [("12", ""), ("12_3", "3"), ("12_[1-5]", "[1-5]"), ("12_[1,4-9%2]", "[1,4-9%2]"), ("12+0", ""), ("12+1", "")],
)
def test_a_job_of_several_parts_has_one_number(number: str, task: str) -> None:
    (job,) = parse_squeue(row(JobArrayID=number), MARK)
    assert (job.id, job.task) == (12, task)


@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
@pytest.mark.parametrize("between", ["\x1f", "|", ",", "<0123>"])
def test_no_name_or_comment_can_forge_a_row(end: str, between: str) -> None:
    forged = between.join(["999", "x", "RUNNING", "None", "N/A", "n1", "main", "1", "2", "1", "1", "pinnace:a:uid:b"])
    text = f"a{end}{forged}{end}"
    jobs = parse_squeue(row(Name=text) + row(JobArrayID="13", Comment=text), MARK)
    assert [(job.id, job.name, job.comment) for job in jobs] == [(12, text, "c"), (13, "n", text)]


def test_nobody_knows_the_separator_beforehand() -> None:
    assert separator() != separator()


@pytest.mark.parametrize(
    "text",
    ["12 n RUNNING\n", f"12{MARK}1000{MARK}\n", row(UserID="alice"), row(JobArrayID="x+0"), row() + f"{MARK}\n",
     row(State="ODD"), row()[: len(row()) // 3], row() + "more"],
)  # fmt: skip
def test_what_is_not_as_we_asked_for_it_is_refused(text: str) -> None:
    with pytest.raises(SlurmError, match="squeue printed"):
        parse_squeue(text, MARK)


def test_jobs_that_are_not_ours_are_not_looked_at() -> None:
    text = row(JobArrayID="no number") + row(State="ODD") + row(JobArrayID="7", Comment="mine") + row(UserID="alice")
    assert [job.id for job in parse_squeue(text, MARK, ours=lambda comment: comment == "mine")] == [7]


@pytest.mark.parametrize(("text", "status"), [("0", 0), ("768", 768), ("3:0", 768), ("0:15", 15), ("", 0), ("0:0", 0)])
def test_exit_codes_of_old_and_new_versions(text: str, status: int) -> None:
    assert parse_status(text) == status


TIMES = ("1970-01-01T00:00:10", "1970-01-01T00:00:20", "1970-01-01T00:01:00")


def sacct(*rows: tuple[str, ...]) -> str:
    return "".join("".join(field + MARK for field in row) + "\n" for row in rows)


def accounted(number: str, state: str) -> tuple[str, ...]:
    return (number, "n", state, *TIMES, "n1", "1", "0:0", "40", "00:01", "", "cpu=1", "", "sbatch")


def test_what_sacct_says_of_a_job_and_of_its_steps() -> None:
    line = "sbatch --parsable --comment=mine"
    text = sacct(
        ("7", "n", "CANCELLED by 2001", *TIMES, "n1", "1", "0:15", "40", "00:02.500", "", "cpu=1", "mine", line),
        ("7.batch", "batch", "CANCELLED", *TIMES, "n1", "1", "0:15", "40", "00:02.500", "3K", "", "", ""),
        ("7.extern", "extern", "ODD", *TIMES, "n1", "1", "0:0", "40", "00:00", "1K", "", "", ""),
        ("9_0", "n", "COMPLETED", *TIMES, "None assigned", "1", "0:0", "40", "00:01", "", "cpu=1", "", ""),
        ("9_1", "n", "FAILED", *TIMES, "n1", "1", "3:0", "40", "1-00:00:01", "", "cpu=1", "", ""),
    )  # fmt: skip
    job, first, second = parse_sacct(text, MARK)
    assert (job.id, job.task, job.state, job.status) == (7, "", JobState.CANCELLED, 15)
    assert (job.submitted, job.start, job.end) == (10, 20, 60)
    assert (job.elapsed, job.cpu, job.memory, job.tres) == (40, 2.5, 3072, "cpu=1")
    assert (job.comment, job.submit_line) == ("mine", line)
    assert [(task.id, task.task, task.nodes) for task in (first, second)] == [(9, "0", ""), (9, "1", "n1")]
    assert (second.status, second.cpu) == (768, 86401)


def test_what_sacct_was_not_asked_for_is_refused() -> None:
    with pytest.raises(SlurmError, match="the fields that it was asked for"):
        parse_sacct(f"7{MARK}FAILED{MARK}", MARK)


@pytest.mark.parametrize("odd", [[("x", "FAILED")], [("7", "ODD")], [("7_0", "FAILED"), ("7_1", "ODD")]])
def test_a_row_of_sacct_that_cannot_be_read_hides_no_other_jobs(odd: list[tuple[str, str]]) -> None:
    text = sacct(*(accounted(*row) for row in odd), accounted("8", "FAILED"))
    assert [job.id for job in parse_sacct(text, MARK)] == [8]
