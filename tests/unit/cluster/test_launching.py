from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pinnace.cluster.launching import cluster_script, inside_options, step_argv, with_memory, with_nodes
from pinnace.spec import agent_argv

DIRECTORY = Path("/home/a user/clusters/c")


def test_one_agent_is_started_on_every_node() -> None:
    argv = step_argv(DIRECTORY, ["--nodes=2"])
    assert argv[:2] == ["srun", "--nodes=2"]
    assert "--ntasks-per-node=1" in argv
    assert argv[-len(agent_argv(DIRECTORY)) :] == agent_argv(DIRECTORY)
    assert argv[-3:] == ["pinnace.node", "--cluster", str(DIRECTORY)]


def test_jobs_and_steps_begin_in_a_directory_of_ours() -> None:
    """In the user's, which may not be there on a host, or be shared, anybody could have put something."""
    assert f"--chdir={DIRECTORY}" in step_argv(DIRECTORY, [])
    assert f"#SBATCH --chdir={DIRECTORY}" in cluster_script("c", DIRECTORY, [])[0]


def test_inside_an_allocation_the_step_takes_all_of_it() -> None:
    assert "--nodes=3" in inside_options({"SLURM_JOB_NUM_NODES": "3"})
    assert "--overlap" in inside_options({"SLURM_JOB_NUM_NODES": "3"})


def test_the_batch_script_is_valid_shell_and_quotes_what_it_must(tmp_path: Path) -> None:
    script, options = cluster_script("c", DIRECTORY, ["--partition=main"])
    assert options == ["--partition=main", "--comment=pinnace:c"], "nobody's default for the comment counts"
    assert "'/home/a user/clusters/c'" in script
    assert "--nodes=$SLURM_JOB_NUM_NODES" in script
    file = tmp_path / "script"
    file.write_text(script)
    subprocess.run(["bash", "-n", file], check=True, timeout=10)


@pytest.mark.parametrize(
    ("options", "nodes", "asked"),
    [
        ([], 2, ["--nodes=2"]),
        (["--time=5"], 3, ["--nodes=3", "--time=5"]),
        (["--nodes=2-4"], 2, ["--nodes=2-4"]),
        ([], 1, []),
    ],
)
def test_slurm_is_asked_for_as_many_nodes_as_the_caller_wants(options: list[str], nodes: int, asked: list[str]) -> None:
    assert with_nodes(options, nodes) == asked


@pytest.mark.parametrize(
    ("options", "environment", "added"),
    [
        ([], {}, True),
        (["--nodes=2"], {}, True),
        (["--mem=8G"], {}, False),
        (["--mem-per-cpu=2G"], {}, False),
        (["--exclusive"], {}, False),
        ([], {"SBATCH_MEM_PER_NODE": "8G"}, False),
    ],
)
def test_memory_is_asked_for_only_if_the_user_does_not(
    options: list[str], environment: dict[str, str], *, added: bool
) -> None:
    assert (with_memory(options, environment) != options) is added


def test_a_site_may_say_how_much_memory_a_node_has_or_that_it_wants_none() -> None:
    assert with_memory([], {"PINNACE_MEMORY": "8G"}) == ["--mem=8G"]
    assert with_memory([], {"PINNACE_MEMORY": "none"}) == []
    assert with_memory([], {"PINNACE_MEMORY": "none"}, "500M") == []
    assert with_memory(["--mem=1G"], {"PINNACE_MEMORY": "8G"}) == ["--mem=1G"]
