"""A site as administrators make it: an account is demanded, limits are low, a maintenance is ahead, nothing is kept.

Nothing in /tmp can be executed, nft is where nobody looks, there is no ip, and hosts remember for minutes what
homes had in them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from e2e.conftest import Kubectl, User, another_site, make_user
from e2e.left import assert_nothing_left
from e2e.podjobs import log_of, manifest, wait_for_phase
from e2e.test_run import EXAMPLES
from testbed.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.bed, pytest.mark.timeout(600)]

STRICT = Plan(
    hosts=3,
    fast=True,
    accounting=False,
    job_submit=True,
    maintenance=60,
    memlock="64K",
    nofile=1024,
    noexec_tmp=True,
    no_nft=True,
    stale_home=True,
    name_life=180,
)
NFT = "/usr/local/sbin/nft"
STALE_LIMIT = 150.0  # seconds; what a host remembers it remembers for longer, and a run takes some seconds
RUN = ("run", "-N", "2", "-A", "research", "-t", "20", "--image", "busybox.tar")


@pytest.fixture(scope="module")
def alice(real_store: Path) -> Iterator[User]:
    with another_site("strict", STRICT, real_store) as bed:
        yield make_user(bed, "alice", "busybox")


@pytest.fixture(scope="module")
def example(alice: User) -> str:
    return alice.write("hello.yaml", (EXAMPLES / "hello.yaml").read_text())


def test_the_site_is_as_closed_as_it_says(alice: User) -> None:
    alice.run("test", "-e", "late", code=1, on="n2")
    alice.run("touch", "late", on="n1")
    alice.run("test", "-e", "late", code=1, on="n2")
    assert "late" in alice.run("ls", on="n2").stdout.split()
    assert "No locks available" in alice.run("flock", "late", "true", code=None, on="n1").stderr
    assert "Permission denied" in alice.bed.run(["ls", "/home/alice"], user="root", on="n1", check=False).stderr
    alice.run("sh", "-c", "cp /bin/true /tmp; /tmp/true; code=$?; rm /tmp/true; exit $code", code=126, on="n1")
    for program in ("nft", "ip"):
        alice.run("test", "-x", f"/usr/sbin/{program}", code=1, on="n1")


def test_what_the_sites_plugin_says_is_said(alice: User, example: str) -> None:
    for how in (["run", "-N", "2", example], ["up", "-N", "2"]):
        result = alice.pinnace(*how, code=1)
        assert "Please say on whose account: --account=research" in result.stderr
    assert_nothing_left(alice)


def test_a_maintenance_that_is_ahead_is_said_with_what_helps(alice: User, example: str) -> None:
    result = alice.pinnace("run", "-N", "2", "-A", "research", "-t", "90", "--wait-limit", "6s", example, code=1)
    assert "with a shorter time limit (-t)" in result.stderr
    assert_nothing_left(alice)


def test_two_nodes_run_where_everything_is_closed(alice: User, example: str) -> None:
    begun = time.monotonic()
    result = alice.pinnace(*RUN, example, timeout=2 * STALE_LIMIT)
    assert "hello" in result.stdout.lower()
    assert time.monotonic() - begun < STALE_LIMIT, "a host has waited for what it remembered"
    assert_nothing_left(alice)


def test_scratch_where_nothing_can_be_executed_is_named(alice: User, example: str) -> None:
    result = alice.run("env", "PINNACE_SCRATCH=/tmp", "pinnace", *RUN, example, code=1)
    assert "cannot be a node: /tmp is mounted noexec" in result.stderr
    assert "Set PINNACE_SCRATCH, or `scratch` in pinnace.toml" in result.stderr
    assert_nothing_left(alice)


def test_a_host_without_nft_is_named(alice: User, example: str) -> None:
    """It is found where administrators put it, as all other tests here show."""
    alice.bed.run(["chmod", "0", NFT], user="root", on="n2")
    try:
        result = alice.pinnace(*RUN, "-w", "n1,n2", example, code=1)
    finally:
        alice.bed.run(["chmod", "755", NFT], user="root", on="n2")
    assert "n2 cannot be a node: nft: this host has none" in result.stderr
    assert "or have it in the PATH of your jobs" in result.stderr
    assert_nothing_left(alice)


def test_pods_are_jobs_without_accounting(alice: User) -> None:
    """How a job ended is then known by squeue alone, for a while."""
    words = ("-A", "research", "-t", "20", "--image", "busybox.tar")
    alice.pinnace("up", "--pods-as-jobs", "--name", "jobs", *words)
    kubectl = Kubectl(user=alice, cluster="jobs")
    kubectl.apply(manifest("one", ["sh", "-c", "echo said; ulimit -n"]))
    kubectl.apply(manifest("bad", ["sh", "-c", "exit 3"]))
    assert wait_for_phase(kubectl, "one", "Succeeded", "Failed")["phase"] == "Succeeded"
    assert log_of(kubectl, "one").startswith("said\n")
    assert wait_for_phase(kubectl, "bad", "Succeeded", "Failed")["phase"] == "Failed"
    alice.pinnace("down", "jobs")
    assert_nothing_left(alice)
