"""What all tests share: the real components, and one real bed for all tests that are marked ``bed``."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pinnace.components.store import user_root
from testbed import Bed
from testbed.plan import Plan
from testbed.state import Directories

if TYPE_CHECKING:
    from collections.abc import Iterator

# Not the default: whoever develops on this machine may have a bed of their own up. Every pytest-xdist worker has one.
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
TEST_STATE = Path(os.environ.get("TESTBED_PYTEST_STATE", "/var/lib/testbed-pytest") + WORKER)


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
    if os.geteuid() != 0:
        pytest.fail("the bed needs root: run `make test` as root")
    directories = Directories(state=TEST_STATE)
    with one_worker_at_a_time():
        Bed(directories).down()
        bed = Bed.up(Plan(hosts=3, fast=True), directories)
    yield bed
    bed.down()


@pytest.fixture
def bed_environment(bed: Bed) -> dict[str, str]:
    """The environment in which the command ``testbed`` finds that bed."""
    return os.environ | {"TESTBED_STATE": str(bed.directories.state)}
