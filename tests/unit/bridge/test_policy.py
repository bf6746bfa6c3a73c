"""What whoever runs the bridge allows, and that nothing else is."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pinnace import validation
from pinnace.bridge.policy import ForbiddenError, Policy
from pinnace.cli.bridge import bridge, check_options, for_own_cluster, host_directory
from pinnace.errors import UsageError
from pinnace.network.addresses import Ranges
from pinnace.slurm.endpoint import Endpoint
from pinnace.spec import ClusterSpec, Restriction

SITE = Policy(
    slurmrestd=(
        Endpoint.parse("http://slurm:6820"),
        Endpoint.parse("https://gate/a"),
        Endpoint.parse("unix:/run/slurmrestd.sock"),
    ),
    s3=(Endpoint.parse("https://s3.site:9000"),),
    host_paths=("/data/shared",),
)


@pytest.mark.parametrize(
    ("url", "called"),
    [
        ("http://slurm:6820/slurm/v0.0.37/", "http://slurm:6820"),
        ("slurm:6820", "http://slurm:6820"),
        ("HTTP://SLURM.:6820", "http://slurm:6820"),
        ("https://gate/a/b", "https://gate:443/a"),
        ("unix:/run/slurmrestd.sock", "unix:/run/slurmrestd.sock"),
    ],
)
def test_what_is_called_is_what_was_allowed(url: str, called: str) -> None:
    assert str(SITE.slurmrestd_at(url)) == called


@pytest.mark.parametrize("url", [
    "http://169.254.169.254/latest/meta-data", "http://slurm:22", "https://slurm:6820", "http://slurm", "https://gate/b",
    "https://gate/ab", "https://gate/a/../b", "unix:/run/munge.sock", "unix:/run/slurmrestd.sock/../x", "http://[::1]:6820",
    "http://slurm:6820.evil", "http://evil#@slurm:6820", "http://slurm.evil:6820",
])  # fmt: skip
def test_what_is_not_called(url: str) -> None:
    with pytest.raises((ForbiddenError, UsageError)):
        SITE.slurmrestd_at(url)


@pytest.mark.parametrize("url", [
    "http://user@slurm:6820", "http://slurm:6820@evil", "ftp://slurm", "file:///etc/passwd", "http://slurm:6820?x",
    "http://slurm:99999", "http://slurm:6820\r\nX: y", "http://sl urm", "http://slurm\\@evil", "http://", "unix:",
])  # fmt: skip
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UsageError):
        Endpoint.parse(url)


def test_without_a_word_nothing_is_called() -> None:
    with pytest.raises(ForbiddenError, match="--slurmrestd"):
        Policy().slurmrestd_at("http://slurm:6820")
    with pytest.raises(ForbiddenError, match="--s3"):
        SITE.s3_at("s3.site:9000", secure=False)
    assert str(SITE.s3_at("s3.site:9000", secure=True)) == "https://s3.site:9000"


@pytest.mark.parametrize("source", [
    {"persistentVolumeClaim": {"claimName": "data"}}, {"emptyDir": {}}, {"secret": {"secretName": "s"}, "name": "x"},
    {"hostPath": {"path": "/data/shared/x"}}, {"hostPath": {"path": "/data/shared"}},
])  # fmt: skip
def test_volumes_that_helper_pods_mount(source: dict[str, Any]) -> None:
    SITE.check_volume(source)


@pytest.mark.parametrize("source", [
    {"hostPath": {"path": "/"}}, {"hostPath": {"path": "/data/sharedx"}}, {"hostPath": {"path": "/data/shared/../x"}},
    {"hostPath": None}, {"hostPath": {}}, {"nfs": {"server": "evil", "path": "/"}}, {"csi": {"driver": "x"}}, {},
    {"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}, {"emptyDir": {}, "hostPath": {"path": "/"}},
    {"emptyDir": {}, "secret": {"secretName": "s"}}, {"iscsi": {}}, {"HostPath": {"path": "/"}},
])  # fmt: skip
def test_volumes_that_they_do_not(source: dict[str, Any]) -> None:
    with pytest.raises(ForbiddenError, match="volume"):
        SITE.check_volume(source)


@pytest.mark.parametrize("name", ["../secrets/x", "a/b", "", "a?watch=1", "A", "a b", "a%2fb", "a\n", "-a"])
def test_names_that_do_not_go_into_a_path(name: str) -> None:
    with pytest.raises(UsageError):
        validation.api_name(name)


def test_what_others_say_is_one_short_line() -> None:
    assert validation.printable("a\x1b[31m\nb\u2028c") == "a [31m b c"
    assert len(validation.printable("x" * 10**7)) == 1000


def test_a_manifest_says_which_servers_are_called() -> None:
    result = CliRunner().invoke(bridge, ["--print-manifest", "image:1"])
    assert isinstance(result.exception, UsageError)
    printed = CliRunner().invoke(bridge, ["--print-manifest", "image:1", "--slurmrestd", "http://slurm:6820"]).output
    assert "--slurmrestd=http://slurm:6820" in printed


def test_where_others_are_let_in_no_job_runs_as_the_owner() -> None:
    def spec(restriction: Restriction | None) -> ClusterSpec:
        ranges = Ranges.within(IPv4Network("10.128.0.0/16"))
        return ClusterSpec(name="mine", directory=Path("/x"), ranges=ranges, binaries={}, restriction=restriction)

    assert for_own_cluster(Policy(), spec(None)).may_use_command_line("any")
    assert not for_own_cluster(Policy(), spec(Restriction(level="baseline"))).may_use_command_line("any")


def test_options_for_the_bridge_of_a_head_are_checked_before() -> None:
    check_options(("--slurmrestd=http://slurm:6820", "--jobs=5"))
    with pytest.raises(UsageError, match="no-such-option"):
        check_options(("--no-such-option",))
    with pytest.raises(UsageError, match="below /"):
        host_directory("//")
