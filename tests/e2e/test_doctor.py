"""`pinnace doctor`, and what a cluster says on a host that cannot be a node."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.left import assert_nothing_left
from e2e.test_run import EXAMPLES
from testbed.driver import gpu_uuid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.conftest import User

pytestmark = pytest.mark.bed

# A user namespace like the host's, but in which there can be no other: where root has set max_user_namespaces to 0.
FORBIDDEN = """
import ctypes, os, pwd, sys
ready, go = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    if ctypes.CDLL(None, use_errno=True).unshare(0x10000000):
        sys.exit("unshare: " + os.strerror(ctypes.get_errno()))
    os.write(ready[1], b"x")
    os.read(go[0], 1)
    open("/proc/sys/user/max_user_namespaces", "w").write("0")
    user = pwd.getpwnam(sys.argv[1])
    os.chdir(user.pw_dir)
    os.initgroups(user.pw_name, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    environment = {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name, "PATH": "/usr/bin:/bin"}
    os.execve(sys.argv[2], sys.argv[2:], environment)
os.read(ready[0], 1)
for table in ("uid_map", "gid_map"):
    open(f"/proc/{child}/{table}", "w").write("0 0 4294967295")
os.write(go[1], b"x")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
PINNACE = "/opt/pinnace/bin/pinnace"


def doctor(user: User, *options: str, code: int = 0) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(user.pinnace("doctor", "-o", "json", *options, code=code).stdout)
    return rows


@contextlib.contextmanager
def clock_behind(user: User, host: str, span: str) -> Iterator[list[str]]:
    """A host whose clock is off, for what is started with these words. The kernel has one clock for all hosts."""
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
    file = "/tmp/clock"
    user.bed.run(["sh", "-c", f"echo {span} > {file}; chmod 644 {file}"], user="root", on=host)
    try:
        yield ["env", f"LD_PRELOAD={library}", f"FAKETIME_TIMESTAMP_FILE={file}"]
    finally:
        user.bed.run(["rm", file], user="root", on=host)


def test_a_site_that_has_all_is_told_so_for_every_host(bob: User) -> None:
    rows = doctor(bob, "-N", "2", "-w", "n2,n3")
    assert {row["host"] for row in rows} == {"login", "n2", "n3"}
    assert {row["state"] for row in rows if row["name"] != "ranks"} == {"ok"}, rows  # Debian's newest has no PMIx
    everywhere = {
        "home",
        "user namespaces",
        "subordinate ids",
        "nft",
        "/dev/net/tun",
        "scratch",
        "addresses",
        "cgroups",
        "network",
        "login access",
        "native sockets",
        "devices",
        "file watches",
    }
    for host in ("n2", "n3"):
        names = {row["name"] for row in rows if row["host"] == host}
        adapter = {"device files"} if host == "n3" else set()
        assert names == everywhere | {"clock", "node", "overlayfs"} | adapter
    about = {row["host"]: row["text"] for row in rows if row["name"] == "devices"}
    assert about["n2"] == "2 NVIDIA GPUs, none of them for this job (ask for them, as with --gres=gpu:1)"
    assert about["n3"] == f"{about['n2']}, RDMA adapters"
    assert {row["name"] for row in rows if row["host"] == "login"} == {"components", "home", "ranks", "slurm"}
    assert not list(bob.home.glob(".local/share/pinnace/.seen-*"))
    assert_nothing_left(bob)


def test_the_gpus_of_a_job_are_named_and_tried(bob: User) -> None:
    rows = {row["name"]: row for row in doctor(bob, "-w", "n3", "--gres=gpu:1") if row["host"] == "n3"}
    uuid = gpu_uuid(bob.bed.plan.host("n3"), 0)
    assert rows["devices"]["text"].startswith(f"2 NVIDIA GPUs, for this job: {uuid}, RDMA adapters; containers get")
    # The GPU's own file, three of all GPUs, and two of the adapters.
    assert rows["device files"]["text"] == "6 can be opened in a node"
    assert {row["state"] for row in rows.values()} == {"ok"}


def test_this_machine_is_checked_without_options(bob: User) -> None:
    result = bob.pinnace("doctor")
    assert result.stdout.startswith("login\n✓ components: all 9 are there\n")
    assert "✓ node: namespaces, mounts and network can be made" in result.stdout
    assert_nothing_left(bob)


def test_what_a_user_lacks_is_named_with_the_next_step(carol: User) -> None:
    """She can have clusters, with a restriction: that is no failure."""
    result = carol.pinnace("doctor", "--on-node")
    assert "! subordinate ids: none: all containers run as you, whatever they ask for" in result.stdout
    assert "  Ask your site's administrators for newuidmap, and 65536 ids in /etc/subuid" in result.stdout
    assert "✓ node: namespaces, mounts and network can be made" in result.stdout


def test_slurms_own_words_are_shown_if_it_refuses(bob: User) -> None:
    *_, row = doctor(bob, "-p", "nowhere", code=1)
    assert (row["host"], row["state"]) == ("nodes", "failed")
    assert "Invalid partition name" in row["text"]


@pytest.mark.parametrize("command", [["run", "hello.yaml"], ["up", "--name", "apart"]])
def test_a_home_that_the_nodes_do_not_see_is_named(bob: User, command: list[str]) -> None:
    shutil.copy(EXAMPLES / "hello.yaml", bob.home)
    apart = ["env", "PINNACE_HOME=/tmp/apart"]
    result = bob.run(*apart, "pinnace", *command, code=1, timeout=60)
    assert "do they see the same /tmp/apart/clusters?" in result.stderr
    assert "pinnace doctor --on-node" in result.stderr
    assert not bob.run(*apart, "pinnace", "list", "-o", "name").stdout
    told = bob.run(*apart, "pinnace", "doctor", "--on-node", code=1).stdout
    assert "✗ home: /tmp/apart is not the same directory as on login" in told
    remove_output_of_slurm(bob)
    assert_nothing_left(bob)


def remove_output_of_slurm(user: User) -> None:
    """Slurm makes the directories of a job's output on hosts that lack them, where pinnace is not to remove them."""
    for host in ("n1", "n2", "n3"):
        apart = user.bed.directories.host(host) / "tmp/apart"
        assert {path.parent.name for path in apart.rglob("*") if path.is_file()} <= {"logs"}
        shutil.rmtree(apart, ignore_errors=True)


def test_a_home_that_is_full_is_named(bob: User) -> None:
    shutil.copy(EXAMPLES / "hello.yaml", bob.home)
    small = "/home/bob/small"
    (bob.home / "small").mkdir(exist_ok=True)
    bob.bed.run(["mount", "-t", "tmpfs", "-o", f"size=1m,uid={bob.uid}", "tmpfs", small], user="root")
    try:
        for command in ("run", "up"):
            file = ["hello.yaml"] if command == "run" else []
            result = bob.run("env", f"PINNACE_HOME={small}", "pinnace", command, *file, code=1, timeout=60)
            assert f"no space left in {small}/clusters for the cluster" in result.stderr
            assert "set PINNACE_HOME to a directory with more room" in result.stderr
        assert not bob.run("find", small, "-type", "f").stdout
    finally:
        bob.bed.run(["umount", small], user="root")
        (bob.home / "small").rmdir()
    assert_nothing_left(bob)


def test_a_host_without_user_namespaces_is_named(bob: User) -> None:
    shutil.copy(EXAMPLES / "hello.yaml", bob.home)
    forbidden = ["/usr/bin/python3", "-c", FORBIDDEN, "bob", PINNACE]
    result = bob.bed.run([*forbidden, "run", "--local", "hello.yaml"], user="root", check=False)
    assert result.returncode == 1, result.stderr
    assert "login cannot be a node: user namespaces: this host does not allow user namespaces" in result.stderr
    assert "Ask your site's administrators for `sysctl user.max_user_namespaces=" in result.stderr
    assert not bob.pinnace("list", "-o", "name").stdout
    told = bob.bed.run([*forbidden, "doctor"], user="root", check=False)
    assert told.returncode == 1
    assert "✗ user namespaces: this host does not allow user namespaces (user.max_user_namespaces is 0)" in told.stdout


def test_a_host_whose_clock_is_off_is_named(bob: User) -> None:
    shutil.copy(EXAMPLES / "hello.yaml", bob.home)
    with clock_behind(bob, "n3", "-3d") as words:
        result = bob.run(*words, "pinnace", "run", "-N", "2", "-w", "n2,n3", "hello.yaml", code=1)
        assert "n3 cannot be a node: its clock is 3 days behind" in result.stderr
        assert "NTP" in result.stderr
        told = bob.run(*words, "pinnace", "doctor", "-w", "n3", code=1).stdout
        assert "✗ clock: 3 days behind" in told
    assert_nothing_left(bob)
    with clock_behind(bob, "n3", "-5h") as words:  # certificates are valid a day before they are made
        told = bob.run(*words, "pinnace", "doctor", "-w", "n3").stdout
        assert "! clock: 5 hours behind" in told
