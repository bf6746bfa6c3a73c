from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from pinnace.errors import SlurmError, UsageError
from pinnace.slurm.commands import (
    FIELDS,
    Slurm,
    batch_script,
    parse_accounting,
    parse_rows,
    query_environment,
    row_format,
    submission_environment,
)
from pinnace.slurm.states import JobState, Phase

if TYPE_CHECKING:
    from pathlib import Path


MARK = "0123456789abcdef"


def row(*, name: str = "n", comment: str = "c", number: str = "12", user: str = "1000") -> str:
    """A row as squeue prints it in our format."""
    known = {"%i": number, "%U": user, "%T": "PENDING", "%r": "Resources", "%S": "2026-11-15T10:00:00", "%N": "",
             "%P": "main", "%L": "10:00", "%l": "20:00", "%M": "0:0", "%D": "2", "%j": name, "%k": comment}  # fmt: skip
    text = row_format(MARK)
    for field, value in known.items():
        text = text.replace(field, value, 1)
    return f"{text}\n"


def test_a_row_of_squeue_becomes_a_job() -> None:
    (job,) = parse_rows(row(name="pinnace-a"), MARK)
    assert (job.id, job.user, job.name, job.state, job.reason) == (12, 1000, "pinnace-a", "PENDING", "Resources")
    assert (job.start, job.time_left, job.time_limit) == ("2026-11-15T10:00:00", "10:00", "20:00")
    assert (job.nodes, job.comment) == ("", "c")


def test_what_squeue_does_not_know_is_empty() -> None:
    (job,) = parse_rows(row(number="7_3", comment="(null)").replace("2026-11-15T10:00:00", "N/A"), MARK)
    assert (job.id, job.start, job.comment) == (7, "", "")


@pytest.mark.parametrize("number", ["12", "12_3", "12_[1-5]", "12_[1,4-9%2]", "12+0", "12+1"])
def test_a_job_of_several_parts_has_one_number(number: str) -> None:
    (job,) = parse_rows(row(number=number), MARK)
    assert job.id == 12


SACCT = f"""#!{sys.executable}
import sys
words = dict(word.partition("=")[::2] for word in sys.argv[1:])
assert words["--format"] == "JobID,State,Comment,SubmitLine", words
rows = [["7", "CANCELLED by 0", "a\\n8|FAILED|", "sbatch --parsable"], ["9_3", "TIMEOUT", "", "sbatch --comment=x\\n"]]
for row in rows:
    print("".join(field + words["--delimiter"] for field in row))
open(sys.argv[0] + ".asked", "a").write(words["--jobs"] + "\\n")
"""


def test_accounting_is_asked_once_for_all_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sacct").write_text(SACCT)
    (tmp_path / "sacct").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert Slurm().sacct() == []
    first, second = Slurm().sacct(7, 8, 9)
    assert (first.id, first.state, first.comment) == (7, JobState.CANCELLED, "a\n8|FAILED|")
    assert (second.id, second.state, second.submit_line) == (9, JobState.TIMEOUT, "sbatch --comment=x")
    assert (tmp_path / "sacct.asked").read_text() == "7,8,9\n"


def test_what_sacct_was_not_asked_for_is_refused() -> None:
    with pytest.raises(SlurmError, match="the fields that it was asked for"):
        parse_accounting(f"7{MARK}FAILED{MARK}", MARK)


@pytest.mark.parametrize("odd", [f"x{MARK}FAILED{MARK}{MARK}{MARK}", f"7{MARK}ODD{MARK * 3}"])
def test_a_row_of_sacct_that_cannot_be_read_hides_no_others(odd: str) -> None:
    assert [row.id for row in parse_accounting(f"{odd}8{MARK}FAILED{MARK}{MARK}{MARK}", MARK)] == [8]


@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
@pytest.mark.parametrize("separator", ["\x1f", "|", ","])
def test_no_name_or_comment_can_forge_a_row(end: str, separator: str) -> None:
    forged = separator.join(["999", "x", "RUNNING", "None", "N/A", "n1", "main", "1", "2", "1", "1", "pinnace:a:uid:b"])
    text = f"a{end}{forged}{end}"
    jobs = parse_rows(row(name=text) + row(number="13", comment=text), MARK)
    assert [(job.id, job.name, job.comment) for job in jobs] == [(12, text, "c"), (13, "n", text)]


@pytest.mark.parametrize(
    "text", ["12 n RUNNING\n", f"{MARK}>12{MARK},1000\n", row(user="alice"), row(number="x+0"), row() + f"{MARK}>\n"]
)
def test_what_is_not_as_we_asked_for_it_is_refused(text: str) -> None:
    with pytest.raises(SlurmError, match="squeue printed"):
        parse_rows(text, MARK)


def fake_slurm(directory: Path, rows: str) -> None:
    """Commands that answer as Slurm's do: squeue in the format that it is asked for, scancel into a file."""
    squeue = f"""#!{sys.executable}
import sys
form = sys.argv[sys.argv.index("--format") + 1]
for line in {rows!r}.split("\\0"):
    text = form
    for field, value in zip({FIELDS!r}, line.split("|"), strict=True):
        text = text.replace(field, value, 1)
    print(text)
"""
    scancel = f'#!/bin/sh\necho "$@" >> {directory}/cancelled\n'
    for name, script in (("squeue", squeue), ("scancel", scancel)):
        (directory / name).write_text(script)
        (directory / name).chmod(0o755)


def test_only_what_is_proven_to_be_ours_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are given again: by now they may be jobs of others, or other jobs of the same user."""
    rest = "RUNNING|None|N/A|n1|main|1|2|1|1"
    mine, other = os.getuid(), os.getuid() + 1
    rows = [f"1|{mine}|{rest}|a|pinnace:a", f"2|{other}|{rest}|a|pinnace:a", f"3|{mine}|{rest}|pinnace-a|thesis"]
    fake_slurm(tmp_path, "\0".join(rows))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert Slurm().cancel(1, 2, 3, ours=lambda comment: comment == "pinnace:a") == [1]
    assert (tmp_path / "cancelled").read_text() == "1\n"
    assert Slurm().cancel(ours=lambda _: True) == []


def test_the_users_defaults_for_squeue_do_not_hide_jobs_from_us() -> None:
    mine = {"SQUEUE_PARTITION": "gpu", "SCANCEL_INTERACTIVE": "1", "SLURM_CONF": "/c", "SLURM_JWT": "t", "HOME": "/h"}
    assert query_environment(mine) == {"SLURM_CONF": "/c", "SLURM_JWT": "t", "HOME": "/h"}


@pytest.mark.parametrize("text", ["a\nb", "a\x1fb", "a\x0bb", "a\x85b", "a\u2028b", "a\0b", "a\x7fb"])
def test_names_and_comments_that_we_give_have_no_control_characters(text: str) -> None:
    with pytest.raises(UsageError, match="cannot be printed"):
        Slurm().rename(1, "name", text)
    with pytest.raises(UsageError, match="cannot be printed"):
        Slurm().rename(1, text, "comment")


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
