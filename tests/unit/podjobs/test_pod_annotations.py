"""What pods ask of Slurm, in our words and those of the systems before us."""

from __future__ import annotations

import pytest

from pinnace.errors import UsageError
from pinnace.podjobs import pod_annotations


@pytest.mark.parametrize("text", ["a\n12\x1fb", "a\x1cb", "a\x85b", "a\u2029b", "a\rb"])
def test_slinkys_words_are_looked_at_too(text: str) -> None:
    with pytest.raises(UsageError, match="cannot be printed"):
        pod_annotations.options({f"{pod_annotations.SLINKY}job-name": text})
    with pytest.raises(UsageError, match="open files"):
        pod_annotations.options({f"{pod_annotations.SLINKY}constraints": "/home/alice/.ssh/id_rsa"})


@pytest.mark.parametrize(
    "name",
    [
        "pinnace.dev/flags",
        "slurm.hpk.io/flags",
        "slurm-job.hpk.io/flags",
        "slurm-job.knoc.io/flags",
        "slurm-job.vk.io/flags",
    ],
)
def test_the_words_of_the_systems_before_us(name: str) -> None:
    assert pod_annotations.options({name: "--ntasks=8 -p main"}) == {"ntasks": "8", "partition": "main"}
    assert pod_annotations.mpi_flags({name.replace("flags", "mpi-flags"): "--mpi=pmix"}) == "--mpi=pmix"


def test_our_own_word_counts_most() -> None:
    both = {"pinnace.dev/flags": "--mem=1G", "slurm.hpk.io/flags": "--mem=2G --time=5"}
    assert pod_annotations.options(both) == {"mem": "1G", "time": "5"}


def test_the_annotations_of_slurm_bridge() -> None:
    prefix = "slurmjob.slinky.slurm.net/"
    words = {"account": "a", "timelimit": "5", "constraints": "c", "cpu-per-task": "2", "mem-per-node": "100",
             "min-nodes": "2", "max-nodes": "4", "gres": "gpu:1", "job-name": "n"}  # fmt: skip
    assert pod_annotations.options({prefix + name: value for name, value in words.items()}) == {
        "account": "a", "time": "5", "constraint": "c", "cpus-per-task": "2", "mem": "100", "nodes": "2-4",
        "gres": "gpu:1", "job-name": "n",
    }  # fmt: skip
    with pytest.raises(UsageError, match="colour is not known"):
        pod_annotations.options({prefix + "colour": "red"})


def test_the_annotation_is_named_that_is_wrong() -> None:
    with pytest.raises(UsageError, match=r"annotation slurm\.hpk\.io/flags: --wrap"):
        pod_annotations.options({"slurm.hpk.io/flags": "--wrap=id"})
