"""The typed fields of a SlurmJob, as sbatch and slurmrestd take them."""

from __future__ import annotations

import pytest

from pinnace.bridge.options import FIELDS, from_fields
from pinnace.errors import UsageError
from pinnace.slurm.allowed_options import SLURMJOB
from pinnace.slurm.options import argv
from pinnace.slurm.rest_properties import job_properties


def test_the_same_options_for_both_ways() -> None:
    given = from_fields({"nodes": 2, "memory": "2G", "time": "1-0", "exclusive": True, "hold": False})
    assert argv(given) == ["--nodes=2", "--mem=2G", "--time=1-0", "--exclusive"]
    assert job_properties(given, "v0.0.38") == {
        "nodes": 2,
        "memory_per_node": 2048,
        "time_limit": 1440,
        "exclusive": "exclusive",
    }


def test_every_field_is_an_option_that_a_slurmjob_may_give() -> None:
    assert {field.option for field in FIELDS} <= SLURMJOB.allowed


def test_what_slurmrestd_does_not_have_is_said() -> None:
    with pytest.raises(UsageError, match="--nodelist"):
        job_properties({"nodelist": "n1"}, "v0.0.38")
    with pytest.raises(UsageError, match="--mem=much"):
        job_properties({"mem": "much"}, "v0.0.38")
