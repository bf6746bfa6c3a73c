"""sbatch's options between a SlurmJob, the command line and slurmrestd."""

from __future__ import annotations

import pytest

from pinnace.bridge import options
from pinnace.errors import UsageError

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
    assert options.directives(SCRIPT) == {
        "--job-name": "test",
        "--nodes": "2",
        "--partition": "main",
        "--output": "cow.out",
        "--exclusive": "",
        "--time": "1:30:00",
    }


def test_the_same_options_for_both_ways() -> None:
    given = options.from_fields({"nodes": 2, "memory": "2G", "time": "1-0", "exclusive": True, "hold": False})
    assert options.arguments(given) == ["--nodes=2", "--mem=2G", "--time=1-0", "--exclusive"]
    assert options.properties(given) == {
        "nodes": 2,
        "memory_per_node": 2048,
        "time_limit": 1440,
        "exclusive": "exclusive",
    }


@pytest.mark.parametrize(("text", "size"), [("100", 100), ("2G", 2048), ("1T", 1 << 20), ("2048K", 2), ("5MB", 5)])
def test_memory(text: str, size: int) -> None:
    assert options.mebibytes(text) == size


def test_what_slurmrestd_does_not_have_is_said() -> None:
    with pytest.raises(UsageError, match="--nodelist"):
        options.properties({"--nodelist": "n1"})
    with pytest.raises(UsageError, match="--mem=much"):
        options.properties({"--mem": "much"})


def test_unknown_words() -> None:
    assert options.parse(["--switches=1@5", "--requeue", "-J", "name", "-n4"]) == {
        "--switches": "1@5",
        "--requeue": "",
        "--job-name": "name",
        "--ntasks": "4",
    }
    with pytest.raises(UsageError, match="-Z"):
        options.parse(["-Z"])
    with pytest.raises(UsageError, match="takes a value"):
        options.parse(["--nodes"])
