"""What containers in the host's network are told, and what is taken out of their bundles."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pinnace.node.services.host_network import (
    Host,
    cni_conflist,
    cni_plugin,
    hosts_file,
    known_names,
    on_host_network,
    only_names,
    read_lenient,
    shim_script,
    with_host_environment,
    with_lines_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

HOST = Host(
    address="192.0.2.7",
    resolv_conf="/run/pinnace/resolv.conf",
    api=("192.0.2.1", 41000),
    api_service="10.96.0.1",
    api_names=("kubernetes.default.svc", "kubernetes"),
    name_servers=frozenset({"10.96.0.10", "10.42.0.2"}),
)


@pytest.fixture
def edited(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """The mounts of a container with these, by their destination."""

    def edit(*mounts: dict[str, Any], env: tuple[str, ...] = ()) -> dict[str, Any]:
        config = {"linux": {}, "process": {"env": [*env]}, "mounts": [*mounts]}
        return {mount["destination"]: mount for mount in on_host_network(config, HOST, tmp_path)["mounts"]}

    return edit


def test_the_network_namespace_goes_with_what_containerd_sets_in_it(tmp_path: Path) -> None:
    """What the pod itself sets stays: runc refuses it, and says why."""
    kept = {"kernel.shm_rmid_forced": "1", "net.ipv4.tcp_syncookies": "0"}
    sysctl = {"net.ipv4.ip_unprivileged_port_start": "0", "net.ipv4.ping_group_range": "0 1"} | kept
    namespaces = [{"type": "pid"}, {"type": "network", "path": "/var/run/netns/cni-1"}, {"type": "ipc"}]
    linux = {"namespaces": namespaces, "sysctl": sysctl, "maskedPaths": ["/proc/kcore"]}
    assert on_host_network({"linux": linux, "process": {}}, HOST, tmp_path)["linux"] == {
        "namespaces": [{"type": "pid"}, {"type": "ipc"}],
        "sysctl": kept,
        "maskedPaths": ["/proc/kcore"],
    }


def test_sysfs_is_the_hosts(edited: Callable[..., dict[str, Any]]) -> None:
    proc = {"destination": "/proc", "type": "proc", "source": "proc"}
    sysfs = {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "ro"]}
    bound = {"destination": "/sys", "type": "bind", "source": "/sys", "options": ["rbind", "nosuid", "ro"]}
    assert edited(proc, sysfs) == {"/proc": proc, "/sys": bound}


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ("search a.svc\nnameserver 10.96.0.10\noptions ndots:5\n", True),
        ("nameserver 10.42.0.2\n", True),
        ("", True),
        ("nameserver 192.0.2.53\n", False),
        ("nameserver 10.96.0.10\nnameserver 192.0.2.53\n", False),
    ],
)
def test_only_the_clusters_resolv_conf_is_replaced(
    edited: Callable[..., dict[str, Any]], tmp_path: Path, text: str, ours: bool
) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text(text)
    assert only_names(text, HOST.name_servers) is ours
    mount = {"destination": "/etc/resolv.conf", "type": "bind", "source": str(file)}
    assert edited(mount)["/etc/resolv.conf"]["source"] == (HOST.resolv_conf if ours else str(file))


def test_only_the_kubelets_hosts_file_is_replaced(edited: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    for name in ("etc-hosts", "own"):
        (tmp_path / name).write_text("127.0.0.1 localhost\n10.244.1.5 pod\n")
    env = ("HOSTNAME=pod",)
    kubelets, own = (
        edited({"destination": "/etc/hosts", "source": str(tmp_path / name)}, env=env)["/etc/hosts"]["source"]
        for name in ("etc-hosts", "own")
    )
    assert own == str(tmp_path / "own")
    lines = Path(kubelets).read_text().splitlines()
    assert lines[-3:] == ["192.0.2.1 kubernetes.default.svc", "192.0.2.1 kubernetes", "192.0.2.7 pod"]
    assert "10.244.1.5 pod" not in lines
    assert Path(kubelets).stat().st_mode & 0o777 == 0o644


def test_files_of_the_host_may_be_missing_or_have_any_encoding(tmp_path: Path) -> None:
    assert read_lenient(tmp_path / "none") == ""
    (tmp_path / "hosts").write_bytes(b"192.0.2.8 n3 # M\xfcnchen\n")
    assert read_lenient(tmp_path / "hosts").startswith("192.0.2.8 n3")


def test_a_pod_finds_the_names_that_its_host_finds() -> None:
    assert with_lines_of("127.0.0.1 localhost\n192.0.2.8 n3", "127.0.0.1 localhost\n192.0.2.9 n4\n") == (
        "127.0.0.1 localhost\n192.0.2.8 n3\n192.0.2.9 n4\n"
    )


def test_a_name_has_one_address_in_a_hosts_file() -> None:
    text = "# a comment\n\n127.0.0.1 localhost\n127.0.1.1 n2.site n2 # Debian's\n192.0.2.7 n2.ib\n192.0.2.8 n3\n"
    assert hosts_file(text, {"n2": "192.0.2.7"}) == (
        "# a comment\n\n127.0.0.1 localhost\n127.0.1.1 n2.site\n192.0.2.7 n2.ib\n192.0.2.8 n3\n192.0.2.7 n2\n"
    )


def test_a_line_that_is_right_stays_with_the_full_name_first() -> None:
    text = "192.0.2.7 n2.site n2\n"
    assert hosts_file(text, {"n2": "192.0.2.7"}) == text


def test_a_container_without_a_hostname_finds_the_api_alone() -> None:
    assert known_names(HOST, "") == {"kubernetes.default.svc": "192.0.2.1", "kubernetes": "192.0.2.1"}


def test_a_process_knows_its_host_and_finds_the_api() -> None:
    env = ["KUBERNETES_SERVICE_HOST=10.96.0.1", "KUBERNETES_SERVICE_PORT=443", "A=b=c"]
    assert set(with_host_environment({"env": env}, HOST)["env"]) == {
        "PINNACE_HOST_ADDRESS=192.0.2.7",
        "KUBERNETES_SERVICE_HOST=kubernetes.default.svc",
        "KUBERNETES_SERVICE_PORT=41000",
        "KUBERNETES_SERVICE_PORT_HTTPS=41000",
        "A=b=c",
    }


def test_a_process_that_was_told_another_api_keeps_it() -> None:
    env = ["KUBERNETES_SERVICE_HOST=api.example", "KUBERNETES_SERVICE_PORT=443"]
    assert set(env) < set(with_host_environment({"env": env}, HOST)["env"])


def test_the_cni_plugin_gives_a_pod_the_hosts_address_and_makes_nothing(tmp_path: Path) -> None:
    plugin = tmp_path / cni_conflist()["plugins"][0]["type"]
    plugin.write_text(cni_plugin("192.0.2.7"))
    plugin.chmod(0o755)

    def call(command: str) -> str:
        environment = {"CNI_COMMAND": command}
        return subprocess.run([plugin], check=True, capture_output=True, text=True, timeout=10, env=environment).stdout

    assert json.loads(call("ADD")) == {"cniVersion": "1.0.0", "ips": [{"address": "192.0.2.7/32"}]}
    assert call("DEL") == call("CHECK") == ""


def test_only_the_start_of_a_shim_goes_through_the_client(tmp_path: Path) -> None:
    shim, python = tmp_path / "a shim", tmp_path / "python"
    for program in (shim, python):
        program.write_text(f'#!/bin/sh\necho {program.name} "$@"\n')
        program.chmod(0o755)
    script = tmp_path / "script"
    script.write_text(shim_script(str(shim), "/run/socket", str(python)))
    script.chmod(0o755)

    def run(*words: str) -> str:
        return subprocess.run([script, *words], check=True, capture_output=True, text=True, timeout=10).stdout

    assert run("-id", "start", "delete") == "a shim -id start delete\n"
    assert run("-info") == "a shim -info\n"
    said = run("-id", "two words", "start").split()
    assert said[:3] == ["python", "-I", "-S"]
    assert said[4:] == ["/run/socket", "-id", "two", "words", "start"]
