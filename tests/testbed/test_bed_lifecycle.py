"""Up, down, and everything that can happen in between. These beds are small, and beside the one of the other tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed import Bed
from testbed.errors import BedError
from testbed.plan import Plan
from testbed.state import Directories, Phase, State
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.bed

STATE = Path("/var/lib/testbed-pytest-lifecycle")
LIMIT = 120.0


@pytest.fixture
def directories() -> Iterator[Directories]:
    if os.geteuid() != 0:
        pytest.fail("the bed needs root: run `make test` as root")
    directories = Directories(state=STATE)
    Bed(directories).down()
    yield directories
    Bed(directories).down()


@pytest.fixture
def neighbours(directories: Directories) -> Iterator[list[Path]]:
    """Cgroups beside the bed's, which stay. Those of the machine may go by themselves."""
    made = [top.with_name(f"{top.name}-neighbour") for top in Bed(directories).cgroups.tops]
    for path in made:
        path.mkdir(exist_ok=True)
    yield made
    for path in made:
        path.rmdir()


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "testbed", *arguments]
    variables = os.environ | {"TESTBED_STATE": str(STATE)}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=LIMIT)


def namespaces(kind: str) -> set[str]:
    """All that any process is in."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.add(str((process / "ns" / kind).readlink()))
        except OSError:
            continue
    return found


def traces() -> dict[str, set[str]]:
    """What a bed could leave on the machine. The memory cgroups come and go with the machine's own business."""
    hierarchies = [path for path in Path("/sys/fs/cgroup").iterdir() if path.name != "memory"]
    return {
        "mounts": set(Path("/proc/self/mountinfo").read_text().splitlines()),
        "interfaces": {path.name for path in Path("/sys/class/net").iterdir()},
        "cgroups": {path for top in hierarchies for path, _, _ in os.walk(top)},  # some go while we look
        **{kind: namespaces(kind) for kind in ("net", "mnt", "pid", "uts", "ipc", "cgroup")},
    }


def left(before: dict[str, set[str]]) -> dict[str, set[str]]:
    now = traces()
    return {kind: now[kind] - before[kind] for kind in before if now[kind] - before[kind]}


def kill_half_way(directories: Directories) -> None:
    """SIGKILL for an ``up`` that has started its hosts and not yet its daemons."""
    command = [sys.executable, "-m", "testbed", "up", "--hosts", "1"]
    variables = os.environ | {"TESTBED_STATE": str(STATE)}
    with subprocess.Popen(command, env=variables, stderr=subprocess.DEVNULL, start_new_session=True) as process:

        def half_way() -> bool:
            state = State.read(directories)
            return state is not None and bool(state.holders)

        wait_until("the hosts of a new bed", half_way, limit=LIMIT, interval=0.001)
        process.send_signal(signal.SIGKILL)
    state = State.read(directories)
    assert state is not None
    assert state.phase is Phase.STARTING
    assert all(holder.alive() for holder in state.holders.values())


@pytest.mark.alone
def test_down_leaves_nothing(directories: Directories, neighbours: list[Path]) -> None:
    before = traces()
    bed = Bed.up(Plan(hosts=1, fast=True), directories)
    during = left(before)
    assert {"net", "mnt", "pid", "uts", "ipc", "cgroup", "cgroups"} <= set(during)
    assert not {"mounts", "interfaces"} & set(during), "nothing of the bed is in the machine's own namespaces"
    job = bed.run(["sbatch", "--wrap", "sleep 600"])
    assert job.stdout.startswith("Submitted")
    assert bed.down()
    wait_until("the last traces to go", lambda: not left(before), limit=60)
    assert all(path.is_dir() for path in neighbours), "what is not the bed's stays"
    assert [path.name for path in directories.state.iterdir()] == ["lock"]
    assert not bed.down(), "there is nothing more to remove"


def test_a_second_up_is_refused_and_the_first_untouched(directories: Directories) -> None:
    bed = Bed.up(Plan(hosts=1, fast=True), directories)
    before = bed.state()
    result = call("up")
    assert result.returncode == 1
    assert "A bed is up already" in result.stderr
    assert "testbed down" in result.stderr
    assert bed.state() == before
    assert bed.all_idle()


@pytest.mark.alone
def test_clean_after_a_killed_up(directories: Directories) -> None:
    before = traces()
    kill_half_way(directories)
    assert "There is no bed" in call("run", "--", "true").stderr
    assert call("clean").returncode == 0
    wait_until("the last traces to go", lambda: not left(before), limit=60)


@pytest.mark.alone
def test_clean_without_a_state_file(directories: Directories) -> None:
    before = traces()
    kill_half_way(directories)
    directories.file.unlink()
    assert call("clean").returncode == 0
    wait_until("the last traces to go", lambda: not left(before), limit=60)


def test_up_after_a_killed_up_and_a_damaged_file(directories: Directories) -> None:
    kill_half_way(directories)
    directories.file.write_text('{"phase": "up", "pl')
    assert "testbed clean" in call("status").stderr
    result = call("up", "--hosts", "1")
    assert result.returncode == 0, result.stderr
    assert "cleaning what a dead run has left" in result.stderr
    assert call("run", "--", "srun", "hostname").stdout == "n1\n"


def test_the_usual_scheduler_without_fast(directories: Directories, bed: Bed) -> None:
    usual = Bed.up(Plan(hosts=1), directories)
    show = ["sh", "-c", "scontrol show config | grep '^SchedulerParameters'"]
    assert "batch_sched_delay" not in usual.run(show).stdout
    assert "batch_sched_delay=0" in bed.run(show).stdout


def test_two_beds_do_not_meet(directories: Directories, bed: Bed) -> None:
    other = Bed.up(Plan(hosts=1, fast=True), directories)
    other.run(["touch", "here"])
    assert bed.run(["ls", "here"], check=False).returncode != 0
    other.down()
    assert bed.run(["srun", "hostname"]).returncode == 0


def test_slurm_without_cgroups_on_slow_links_with_a_processor_for_each_host(directories: Directories) -> None:
    result = call("up", "--hosts", "2", "--fast", "--no-cgroups", "--link-rate", "1gbit", "--own-processors")
    assert result.returncode == 0, result.stderr
    bed = Bed.current(directories)
    assert bed.run(["srun", "-N2", "grep", "-c", "slurm", "/proc/self/cgroup"], check=False).stdout == "0\n0\n"
    assert "rate 1Gbit" in bed.run(["/sbin/tc", "qdisc", "show", "dev", "eth0"], on="n1").stdout
    processors = ["awk", "/^Cpus_allowed_list/ { print $2 }", "/proc/self/status"]
    first, second = (bed.run(processors, on=host).stdout.strip() for host in ("n1", "n2"))
    assert first.isdigit()
    assert second.isdigit()
    assert (first == second) == (os.cpu_count() == 1)
    assert sorted(bed.run(["srun", "-N2", *processors]).stdout.split()) == sorted([first, second])


def test_what_is_mounted_below_the_state_directory_is_not_emptied(directories: Directories, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("x")
    target = directories.state / "opt"
    target.mkdir(parents=True)
    subprocess.run(["mount", "--bind", str(tmp_path), str(target)], check=True, timeout=LIMIT)
    try:
        with pytest.raises(BedError, match="would be lost"):
            Bed(directories).down()
    finally:
        subprocess.run(["umount", str(target)], check=True, timeout=LIMIT)
    assert precious.exists()


@pytest.mark.alone
def test_an_up_that_fails_says_why_and_leaves_nothing(
    directories: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = traces()
    monkeypatch.setattr("testbed.slurmconf.CTLD_PORT", "nonsense")
    with pytest.raises(BedError, match=r"(?s)slurm.*nonsense"):
        Bed.up(Plan(hosts=1), directories)
    wait_until("the last traces to go", lambda: not left(before), limit=60)
    assert State.read(directories) is None
