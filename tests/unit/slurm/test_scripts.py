"""Directives of batch scripts, and scripts inside a script of ours, run for real."""

from __future__ import annotations

import shlex
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from pinnace.errors import UsageError
from pinnace.slurm.scripts import batch_script, directives, without_directives, wrapped

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 60.0
SCRIPT = """#!/bin/bash
# a comment
#SBATCH --job-name=test -N 2
#SBATCH -p main   # where
#SBATCH --output cow.out --exclusive

#SBATCH -t1:30:00
echo hello
#SBATCH --qos=too-late
"""


def test_directives_end_with_the_first_command() -> None:
    assert directives(SCRIPT) == {
        "job-name": "test",
        "nodes": "2",
        "partition": "main",
        "output": "cow.out",
        "exclusive": None,
        "time": "1:30:00",
    }


def test_sbatch_sees_no_directives() -> None:
    script = "#!/bin/sh\n\n#SBATCH --uid=0\n \t#x\x0b\n#PBS -l x\n#BSUB x\r\n#SLURM y\ncat <<E\n#SBATCH --nested\nE\n"
    left = without_directives(script)
    assert [line for line in left.split("\n") if line.startswith(("#SBATCH", "#PBS", "#BSUB", "#SLURM"))] == [
        "#SBATCH --nested"
    ]
    assert left.endswith("cat <<E\n#SBATCH --nested\nE\n")
    # A line end that only Python knows does not hide a directive from us, nor begin one.
    assert directives("#!/bin/sh\n# x\u2028echo\n#SBATCH --nodes=2\n") == {"nodes": "2"}
    assert directives("#!/bin/sh\n# x\u2028#SBATCH --nodes=2\n") == {}
    with pytest.raises(UsageError, match="quot"):
        directives("#SBATCH --job-name='x\n")


def run(script: str, directory: Path) -> subprocess.CompletedProcess[str]:
    argv = ["sh", "-c", script]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LIMIT, cwd=directory)


def test_arguments_input_and_exit_code(tmp_path: Path) -> None:
    script = wrapped('#!/bin/bash\necho "$# $2"\nexit 3\n', ["it's", "a b"])
    result = run(script, tmp_path)
    assert (result.returncode, result.stdout) == (3, "2 a b\n")
    outer = wrapped(wrapped('#!/bin/sh\necho "$1"; cat\n'), ["through both"])
    result = run(f"echo words | (\n{outer})", tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "through both\nwords\n", "")


def test_a_script_is_where_it_can_be_run(tmp_path: Path) -> None:
    """In a namespace with a $TMPDIR that is mounted noexec, as /tmp is at some sites."""
    (noexec := tmp_path / "noexec").mkdir()
    script = wrapped('#!/bin/sh\necho "ran in ${0%/*}"\n')
    mounted = f"mount -t tmpfs -o noexec tmpfs {noexec}; export TMPDIR={noexec}\n{script}"
    result = run(f"unshare --user --map-root-user --mount sh -c {shlex.quote(mounted)}", tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "ran in /var/tmp\n", "")


def test_a_signal_reaches_the_script_and_what_follows_is_done(tmp_path: Path) -> None:
    inner = "#!/bin/sh\ntrap 'echo heard; exit 5' USR1\necho begun\nwhile :; do sleep 0.1; done\n"
    script = wrapped(inner, after=["echo after"])
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.read() == "heard\nafter\n"
        assert process.wait(LIMIT) == 5


def test_a_batch_script_has_its_directives_first() -> None:
    script = batch_script(["--job-name=a"], "exec true")
    assert script == "#!/bin/bash -l\n#SBATCH --job-name=a\n\nexec true\n"
