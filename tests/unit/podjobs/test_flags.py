"""Flags as users write them."""

from __future__ import annotations

import pytest

from pinnace.errors import UsageError
from pinnace.podjobs import flags, pod_annotations


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", {}),
        ("--mem=4G", {"mem": "4G"}),
        ("--mem 4G -p gpu", {"mem": "4G", "partition": "gpu"}),
        ("-pgpu -N2 -n 8", {"partition": "gpu", "nodes": "2", "ntasks": "8"}),
        ("--constraint='a&b' -J \"two words\"", {"constraint": "a&b", "job-name": "two words"}),
        ("--exclusive --nice", {"exclusive": None, "nice": None}),
        ("--exclusive=user --nice=10", {"exclusive": "user", "nice": "10"}),
        ("--hold", {"hold": None}),
    ],
)
def test_flags_are_parsed_as_sbatch_does(text: str, options: flags.Options) -> None:
    assert flags.parse(text) == options


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("--wrap=id", "--wrap is not for pods"),
        ("-o /tmp/x", "--output is not for pods"),
        ("-D /", "--chdir"),
        ("--comment=x", "says whose job"),
        ("--uid=0", "cluster's user"),
        ("-a 1-10", "a pod is one job"),
        ("--requeue", "makes a new pod"),
        ("--signal=KILL@1", "--signal"),
        ("--export=ALL", "--export"),
        ("-M other", "another Slurm cluster"),
        ("--bogus=1", "--bogus is no option"),
        ("-Z", "-Z is no option"),
        ("script.sh", "no option"),
        ("--mem", "lacks its value"),
        ("--hold=1", "takes no value"),
        ("--mem='4G", "cannot be read"),
        ("--mem='4\nG'", "cannot be printed"),
        ("-J 'a\x0bb'", "cannot be printed"),
        ("-J 'a\u2028b'", "cannot be printed"),
        ("--nodefile=/home/alice/.ssh/id_rsa", "--nodefile is not for pods"),
        ("-F .ssh/id_rsa", "--nodefile is not for pods"),
        ("--nodelist=/home/alice/.ssh/id_rsa", "open files"),
        ("-w ./secret", "open files"),
        ("-x ../secret", "open files"),
        ("--exclude=/home/alice/.ssh/id_rsa", "open files"),
        ("--nodel=/home/alice/.ssh/id_rsa", "--nodel is no option"),
        ("--export-file=3", "--export-file is not for pods"),
        ("--container=/bundle", "--container is not for pods"),
        ("--get-user-env", "--get-user-env is not for pods"),
        ("--bcast=/x", "--bcast is no option"),
        ("--bbf=x", "--bbf is not for pods"),
        ("--gres=/x", "open files"),
    ],
)
def test_what_would_do_harm_is_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        flags.parse(text)


@pytest.mark.parametrize("text", ["a\n12\x1fb", "a\x1cb", "a\x85b", "a\u2029b", "a\rb"])
def test_slinkys_words_are_looked_at_too(text: str) -> None:
    with pytest.raises(UsageError, match="cannot be printed"):
        pod_annotations.options({f"{pod_annotations.SLINKY}job-name": text})
    with pytest.raises(UsageError, match="open files"):
        pod_annotations.options({f"{pod_annotations.SLINKY}constraints": "/home/alice/.ssh/id_rsa"})


def test_a_slash_is_for_dates_and_names_and_for_the_owner() -> None:
    assert flags.parse("--begin=12/24/26 -J a/b") == {"begin": "12/24/26", "job-name": "a/b"}
    assert flags.parse("--exclude=/home/alice/bad-hosts", by_owner=True) == {"exclude": "/home/alice/bad-hosts"}
    assert flags.parse("--image=/a/b", also=frozenset({"image"})) == {"image": "/a/b"}


def test_a_site_can_allow_its_own() -> None:
    assert flags.parse("--licence-server=a --x", also=frozenset({"licence-server", "x"})) == {
        "licence-server": "a",
        "x": None,
    }


def test_of_two_ways_to_say_the_same_the_later_counts() -> None:
    assert flags.merge({"mem": "1G", "time": "5"}, {"mem-per-cpu": "2G"}) == {"time": "5", "mem-per-cpu": "2G"}
    assert flags.argv({"mem": "1G", "hold": None}) == ["--mem=1G", "--hold"]


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
