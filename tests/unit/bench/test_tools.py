"""The tools of an image on a bare host, and commands in a directory of their own: the real scripts, run here."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pinnace.bench.allocation import failure, in_directory, step_argv
from pinnace.bench.machine import caches, describe
from pinnace.bench.measurements import selected
from pinnace.bench.objects import claim, pod, slurmjob
from pinnace.bench.tools import Tools, copy_argv, needed
from pinnace.errors import BenchError, NoSpaceError

OUTPUTS = Path(__file__).parent / "outputs"


def run(argv: list[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout


def test_copied_programs_run_with_the_libraries_they_were_copied_with(tmp_path: Path) -> None:
    tools = Tools.copied(tmp_path, run(copy_argv(tmp_path, ["cat", "date"])), ["cat", "date"], "image")
    assert tools.dynamic == {"cat", "date"}
    argv = tools.argv(["date", "+%Y"])
    assert argv[0].startswith(str(tmp_path / "lib/ld"))
    assert int(run(argv)) >= 2026
    assert tools.argv(["sh", "-c", "true"]) == ["sh", "-c", "true"]  # none of the image's


def test_a_missing_tool_is_one_sentence_with_the_next_step(tmp_path: Path) -> None:
    printed = run(copy_argv(tmp_path, ["cat", "no-such-tool"]))
    assert "missing no-such-tool" in printed
    with pytest.raises(BenchError, match="the image i has no no-such-tool") as error:
        Tools.copied(tmp_path, printed, ["cat", "no-such-tool"], "i")
    assert "--image-name" in error.value.hint
    assert "make bench-image" in error.value.hint


def test_only_the_tools_of_the_chosen_tasks_are_needed() -> None:
    assert needed(selected(["startup"], hosts=2)) == []
    assert needed(selected(["cpu", "network"], hosts=2)) == ["sysbench", "rr", "iperf3"]


def test_a_command_leaves_nothing_of_itself_or_of_one_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "pinnace-bench-abc.killed").mkdir()
    (tmp_path / "pinnace-bench-other.x").mkdir()
    printed = run(in_directory(str(tmp_path), "abc", ["sh", "-c", "touch data; pwd"]))
    assert printed.startswith(f"{tmp_path}/pinnace-bench-abc.")
    assert [path.name for path in tmp_path.iterdir()] == ["pinnace-bench-other.x"]


def test_the_exit_code_of_a_command_is_kept(tmp_path: Path) -> None:
    argv = in_directory(str(tmp_path), "abc", ["sh", "-c", "exit 7"])
    assert subprocess.run(argv, check=False, timeout=60).returncode == 7
    assert not list(tmp_path.iterdir())


def test_a_full_file_system_has_a_message_of_its_own() -> None:
    error = failure(2, (OUTPUTS / "fio-full.txt").read_text())
    assert isinstance(error, NoSpaceError)
    assert "--fio-size" in error.hint


def test_other_failures_are_told_in_one_line() -> None:
    error = failure(1, "one\ntwo\nthree\x1b[31m\nfour\nfive\n")
    assert "exit code 1: two / three" in error.message
    assert "\x1b" not in error.message
    klog = 'E1117 23:10:24.988973    1366 v2.go:151] "Copying stdout failed" err="connection reset by peer"'
    assert failure(1, klog).message == 'exit code 1: "Copying stdout failed" err="connection reset by peer"'


def test_a_host_describes_itself() -> None:
    about = describe()
    assert about.keys() >= {"host", "cpu", "threads", "memory", "kernel", "load"}
    assert isinstance(about["memory"], int)
    assert about["memory"] > 1 << 28


def test_caches_that_cpus_share_count_once(tmp_path: Path) -> None:
    for number, shared in enumerate(["0-1", "0-1", "2-3", "2-3"]):
        for index, level, size, who in ((0, 1, "32K", str(number)), (3, 3, "16M", shared)):
            directory = tmp_path / f"cpu{number}/cache/index{index}"
            directory.mkdir(parents=True)
            for name, text in (("level", str(level)), ("size", size), ("shared_cpu_list", who)):
                (directory / name).write_text(f"{text}\n")
    assert caches(tmp_path) == 32 << 20
    assert caches(tmp_path / "none") == 0


def test_a_step_has_all_cpus_of_its_job() -> None:
    argv = step_argv(7, "n1", ["true"], cpus=4, directory="/shared")
    assert {"--jobid=7", "--overlap", "--cpus-per-task=4", "--nodelist=n1", "--cpu-bind=none"} <= set(argv)


def test_objects_name_what_they_need() -> None:
    made = pod("client", "image", ["sleep"], flags={"nodelist": "n1", "mem": "3G"}, directory="/d", claims=["shared"])
    assert made["metadata"]["annotations"] == {"pinnace.dev/flags": "--nodelist=n1 --mem=3G"}
    assert made["spec"]["containers"][0]["volumeMounts"] == [
        {"name": "shared", "mountPath": "/bench/shared"}, {"name": "directory", "mountPath": "/d"},
    ]  # fmt: skip
    assert claim("scratch")["spec"]["storageClassName"] == "scratch"
    assert "--chdir=/d" in slurmjob("a", "script", {"mem": "1G"}, directory="/d")["spec"]["flags"]
