"""Options as users write them, for each use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pinnace.errors import UsageError
from pinnace.slurm.allowed_options import SLURMJOB, check_slurmjob, owner_options, parse_srun, pod_options
from pinnace.slurm.options import argv, merge, parse

if TYPE_CHECKING:
    from pinnace.slurm.options import SbatchOptions


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
def test_flags_are_parsed_as_sbatch_does(text: str, options: SbatchOptions) -> None:
    assert pod_options(text) == options


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
        pod_options(text)


def test_a_slash_is_for_dates_and_names_and_for_the_owner() -> None:
    assert pod_options("--begin=12/24/26 -J a/b") == {"begin": "12/24/26", "job-name": "a/b"}
    assert owner_options(["--exclude=/home/alice/bad-hosts"]) == {"exclude": "/home/alice/bad-hosts"}
    assert pod_options("--image=/a/b", also=frozenset({"image"})) == {"image": "/a/b"}


def test_a_site_can_allow_its_own() -> None:
    assert pod_options("--licence-server=a --x", also=frozenset({"licence-server", "x"})) == {
        "licence-server": "a",
        "x": None,
    }


def test_of_two_ways_to_say_the_same_the_later_counts() -> None:
    assert merge({"mem": "1G", "time": "5"}, {"mem-per-cpu": "2G"}) == {"time": "5", "mem-per-cpu": "2G"}
    assert argv({"mem": "1G", "hold": None}) == ["--mem=1G", "--hold"]


def test_sruns_options_end_with_the_first_word_that_is_none() -> None:
    call = parse_srun(["-lN2", "--ntasks", "4", "--mpi=pmix", "-D", "/x", "-K", "-c2", "prog", "-n", "1"])
    assert call.argv() == [
        "--label",
        "--nodes=2",
        "--ntasks=4",
        "--mpi=pmix",
        "--kill-on-bad-exit",
        "--cpus-per-task=2",
    ]
    assert (call.directory, call.command) == ("/x", ("prog", "-n", "1"))
    assert parse_srun(["--", "-odd"]).command == ("-odd",)
    assert parse_srun(["--input", "none", "orted"]).argv() == ["--input=none"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--nodelist=/etc/passwd", "x"], "a file of the host's"),
        (["-x", "./hosts", "x"], "a file of the host's"),
        (["-o", "x", "y"], "-o is not for pods"),
        (["--task-prolog=/bin/sh", "y"], "it would run on the host"),
        (["--jobid=1", "y"], "the pod's own job"),
        (["--input=/etc/shadow", "y"], "--input=/etc/shadow is not for pods"),
        (["--frob", "y"], "--frob is not known"),
        (["-Z", "y"], "-Z is not known"),
        (["--ntasks"], "lacks its value"),
        (["--label=1", "y"], "takes no value"),
    ],
)
def test_what_would_touch_the_host_is_refused(args: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_srun(args)


def test_an_option_of_srun_counts_as_often_as_it_is_given() -> None:
    assert parse_srun(["-vv", "-J", "", "prog"]).argv() == ["--verbose", "--verbose", "--job-name="]


@pytest.mark.parametrize("arg", [
    "--nodefile=/etc/shadow", "--nodelist=/etc/shadow", "--exclude=./x", "--export-file=/etc/x", "--bbf=/x", "--uid=0",
    "--gid=0", "--wrap=x", "--clusters=other", "--wait", "--test-only", "--export=ALL", "--get-user-env", "--comm=x",
    "--container=/x", "--propagate=ALL", "--job-name=", "--output", "--job-name=a\nb", "--comment=x\x1fy",
    "--comment=a\u2028b", "--mail-user=-Sx", "--version", "--help", "--job-name=" + "x" * 2000, "--parsable",
])  # fmt: skip
def test_options_that_are_not_passed_to_sbatch(arg: str) -> None:
    with pytest.raises(UsageError):
        check_slurmjob(parse([arg], SLURMJOB))


def test_options_that_are_passed_to_sbatch() -> None:
    given = parse(
        ["--switches=1@5", "--requeue", "--exclusive", "-w", "n[1-2]", "--contiguous", "--nice=5", "--no-kill=off"],
        SLURMJOB,
    )
    assert check_slurmjob(given) == given
    with pytest.raises(UsageError, match="--bb"):
        check_slurmjob({"bb": "x"})
    assert check_slurmjob({"bb": "x"}, {"bb"})
    assert check_slurmjob(parse(["--site-own", "--other=x"], SLURMJOB), {"site-own", "other"})


def test_a_letter_takes_what_follows_it_as_it_is_but_in_a_slurmjob() -> None:
    assert pod_options("-p=main") == {"partition": "=main"}
    assert parse_srun(["-n=4", "x"]).argv() == ["--ntasks==4"]
    assert parse(["-p=main", "--hold=", "--nice=", "--exclusive"], SLURMJOB) == {
        "partition": "main",
        "hold": None,
        "nice": None,
        "exclusive": None,
    }
    assert parse(["--nice", "10", "--exclusive", "-n4"], SLURMJOB) == {"nice": "10", "exclusive": None, "ntasks": "4"}
    with pytest.raises(UsageError, match="--partition takes a value"):
        check_slurmjob(parse(["-p=", "--hold"], SLURMJOB))


def test_options_of_a_slurmjob_that_are_not_known() -> None:
    assert parse(["--switches=1@5", "--requeue", "-J", "name", "-n4", "-p=main"], SLURMJOB) == {
        "switches": "1@5",
        "requeue": None,
        "job-name": "name",
        "ntasks": "4",
        "partition": "main",
    }
    with pytest.raises(UsageError, match="-Z"):
        parse(["-Z"], SLURMJOB)
    with pytest.raises(UsageError, match="takes a value"):
        parse(["--nodes"], SLURMJOB)


def test_gpus_are_asked_for_in_one_way_only() -> None:
    """From 26.05 on, sbatch refuses --gres=gpu beside --gpus-per-node: the later layer counts."""
    assert merge({"gpus-per-node": "2"}, {"gres": "gpu:1"}) == {"gres": "gpu:1"}
    assert merge({"gres": "gpu:tesla:1,fpga:1"}, {"gpus": "2"}) == {"gres": "fpga:1", "gpus": "2"}
    assert merge({"gpus": "2"}, {"gres": "fpga:1"}) == {"gpus": "2", "gres": "fpga:1"}
    assert merge({"gres": "gpu:1"}, {"time": "5"}) == {"gres": "gpu:1", "time": "5"}


def test_the_option_that_newer_slurms_have_mpirun_add_is_passed_on() -> None:
    call = parse_srun(["--ntasks-per-node=1", "--mpi=none", "--external-launcher", "--nodes=1", "orted", "-mca"])
    assert call.argv() == ["--ntasks-per-node=1", "--mpi=none", "--external-launcher", "--nodes=1"]
