"""What all tests share: the real components, one real bed for each pytest-xdist worker, and who runs what when."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from pinnace.components.store import user_root
from support import uids  # noqa: F401 - before testbed
from testbed import Bed
from testbed.plan import Plan
from testbed.state import Directories

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdist.remote import Producer  # type: ignore[import-untyped]

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup, and what they start must not
# Not the default: whoever develops on this machine may have a bed of their own up. Every pytest-xdist worker has one.
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
USUAL_PLAN = Plan(hosts=3, fast=True)
TEST_STATE = Path(os.environ.get("TESTBED_PYTEST_STATE", "/var/lib/testbed-pytest") + WORKER)

# Files whose tests one worker runs one after another, by the name of their group. Those that use the same cluster
# are together, so that no more clusters run at once than are asked something. All other files are groups of their own.
GROUPS = {
    "bridge": ("e2e/bridge",),
    "shared 1": ("e2e/test_attacks_network.py", "e2e/test_metrics.py", "e2e/test_sctp.py", "e2e/test_terminal.py",
                 "e2e/test_extending.py", "e2e/test_api.py", "e2e/test_host_network.py", "e2e/test_limits.py",
                 "e2e/test_timeline.py", "e2e/test_dra.py"),
    "shared 2": ("e2e/test_services.py", "e2e/test_storage.py", "e2e/test_images.py", "e2e/test_workloads.py",
                 "e2e/test_cluster.py", "e2e/test_lifecycle.py", "e2e/test_security.py", "e2e/test_configuration.py",
                 "e2e/test_groups.py"),
    "testbed": ("testbed",),
}  # fmt: skip
OF_ONE_GROUP = ("bridged", "s3", "cluster", "bed_of_its_own")  # fixtures of a session that end with their group
used_by_group: set[pytest.FixtureDef[Any]] = set()
# The groups that take longest, which begin first: seconds, measured while three workers shared two processors.
SECONDS = {
    "bridge": 520, "shared 2": 510, "shared 1": 470, "e2e/test_pods.py": 280, "e2e/test_ranks.py": 270,
    "e2e/test_run.py": 230, "e2e/test_cache.py": 200, "e2e/test_interrupting.py": 200, "testbed": 150,
    "e2e/test_native_sockets.py": 170, "e2e/test_devices.py": 110,
    "unit/components/test_build.py": 150, "e2e/test_ending.py": 130, "e2e/test_attacks_tenants.py": 130,
    "e2e/test_elastic.py": 120, "e2e/test_attacks_site.py": 110, "e2e/test_waiting.py": 90, "e2e/test_doctor.py": 70,
    "e2e/test_bench.py": 100, "e2e/test_firewall.py": 90, "e2e/test_generations.py": 300, "e2e/test_sites.py": 120,
    "e2e/test_neighbours.py": 60, "e2e/test_registries.py": 50, "e2e/test_ksi.py": 20, "e2e/test_one_user.py": 20,
}  # fmt: skip


def group_of(nodeid: str) -> str:
    """The group that a test is run with: that of its file or directory, or its file."""
    path = Path(nodeid.partition("::")[0]).relative_to("tests")
    within = {str(path), *map(str, path.parents)}
    return next((name for name, places in GROUPS.items() if within & set(places)), str(path))


class GroupScheduling(LoadFileScheduling):  # type: ignore[misc]
    """``--dist loadfile`` with the groups above in place of files."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling | None:
    return GroupScheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of each group next to one another, the longest groups first."""
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(group_of(item.nodeid), []).append(item)
    items[:] = [item for name in sorted(groups, key=lambda name: -SECONDS.get(name, 0)) for item in groups[name]]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Function, nextitem: pytest.Item | None) -> Iterator[None]:
    """End what only the tests of one group use when they are over: an idle cluster takes time from all others."""
    yield
    for name in OF_ONE_GROUP:
        used_by_group.update(item._fixtureinfo.name2fixturedefs.get(name, ()))
    if nextitem and group_of(item.nodeid) != group_of(nextitem.nodeid):
        while used_by_group:
            used_by_group.pop().finish(item._request)  # type: ignore[arg-type]  # it only wants to know of which test


@contextlib.contextmanager
def one_worker_at_a_time() -> Iterator[None]:
    """While that is made which the beds of all workers share: packages, the accounting database, wheels."""
    cache = Directories().cache
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def real_store() -> Path:
    """The user's own store with all real components in it, fetched if need be (minutes, the first time)."""
    subprocess.run([sys.executable, "-m", "pinnace", "fetch"], check=True, timeout=3000)
    return user_root()


@pytest.fixture(scope="session")
def bed() -> Iterator[Bed]:
    """A bed with three compute hosts; n2 and n3 have GPUs. What a killed test run left is removed first."""
    with bed_at(TEST_STATE) as bed:
        yield bed


@contextlib.contextmanager
def bed_at(state: Path, plan: Plan = USUAL_PLAN) -> Iterator[Bed]:
    if os.geteuid() != 0:
        pytest.fail("the bed needs root: run `make test` as root")
    directories = Directories(state=state)
    with one_worker_at_a_time():
        Bed(directories).down()
        bed = Bed.up(plan, directories)
    yield bed
    bed.down()


@pytest.fixture
def bed_environment(bed: Bed) -> dict[str, str]:
    """The environment in which the command ``testbed`` finds that bed."""
    return os.environ | {"TESTBED_STATE": str(bed.directories.state)}
