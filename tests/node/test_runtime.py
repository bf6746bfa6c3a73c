"""What the wrapper of runc does to a bundle, and what it leaves alone."""

from __future__ import annotations

from typing import Any

from pinnace.node.runtime import (
    DEFAULT_PATH,
    PING,
    is_read_only,
    keeping_read_only,
    last_id,
    with_environment,
    with_known_groups,
    with_launcher,
    with_ping,
    without_cgroups,
    wrapper_script,
)


def bind(source: str, *options: str) -> dict[str, Any]:
    return {"destination": "/there", "type": "bind", "source": source, "options": ["rbind", "rprivate", *options]}


def test_only_what_concerns_cgroups_is_taken_out() -> None:
    config = {"linux": {"cgroupsPath": "/x", "resources": {}, "namespaces": [{"type": "pid"}]}, "process": {}}
    assert without_cgroups(config) == {"linux": {"namespaces": [{"type": "pid"}]}, "process": {}}


def test_a_volume_is_no_more_writable_than_what_it_comes_from() -> None:
    proc = {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid"]}
    config = {"mounts": [bind("/software", "rw"), bind("/home", "rw"), bind("/software", "ro"), proc]}
    mended = keeping_read_only(config, lambda path: path == "/software")
    assert mended["mounts"] == [bind("/software"), bind("/home", "rw"), bind("/software", "ro"), proc]


def test_a_path_that_is_not_there_is_left_to_runc() -> None:
    assert not is_read_only("/no/such/path")
    assert not is_read_only("/tmp")


def sandbox(*namespaces: str, kind: str = "sandbox", **linux: Any) -> dict[str, Any]:
    types = [{"type": namespace} for namespace in namespaces]
    return {"annotations": {"io.kubernetes.cri.container-type": kind}, "linux": {"namespaces": types, **linux}}


def test_every_user_of_a_pod_may_ping_unless_the_pod_says_otherwise() -> None:
    assert with_ping(sandbox("pid", "network"), 65536)["linux"]["sysctl"] == {PING: "0 65536"}
    told = sandbox("network", sysctl={PING: "1 0"})
    assert with_ping(told, 65536) == told
    for other in (sandbox("pid"), sandbox("network", kind="container")):
        assert with_ping(other, 65536) == other


def test_the_last_group_of_a_user_namespace() -> None:
    assert last_id("         0       2001          1\n         1     200000      65536\n") == 65536


def test_a_terminal_has_no_group_that_the_node_does_not_know() -> None:
    def config(*options: str) -> dict[str, Any]:
        return {"mounts": [{"destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": [*options]}]}

    assert with_known_groups(config("nosuid", "mode=0620", "gid=5"), 0) == config("nosuid", "mode=0620")
    assert with_known_groups(config("nosuid", "gid=5"), 65536) == config("nosuid", "gid=5")


ADDED: dict[str, Any] = {
    "mount": bind("/ranks", "ro"),
    "path": "/run/pinnace/bin",
    "environment": {"SLURM_NTASKS": "4"},
    "before": {"main": ["mpiexec", "-np", "4"]},
}


def process(*environment: str) -> dict[str, Any]:
    return {"args": ["program"], "env": [*environment]}


def test_a_container_finds_the_launcher_first_and_keeps_its_own_variables() -> None:
    assert with_environment(process("PATH=/bin", "SLURM_NTASKS=1", "A=b=c"), ADDED)["env"] == [
        "SLURM_NTASKS=1",
        "PATH=/run/pinnace/bin:/bin",
        "A=b=c",
    ]
    assert f"PATH=/run/pinnace/bin:{DEFAULT_PATH}" in with_environment(process(), ADDED)["env"]


def test_only_containers_that_are_named_are_started_by_mpiexec() -> None:
    def config(name: str, kind: str = "container") -> dict[str, Any]:
        about = {"io.kubernetes.cri.container-type": kind, "io.kubernetes.cri.container-name": name}
        return {"annotations": about, "process": process(), "mounts": [bind("/data")]}

    assert with_launcher(config("main"), ADDED)["process"]["args"] == ["mpiexec", "-np", "4", "program"]
    assert with_launcher(config("side"), ADDED)["process"]["args"] == ["program"]
    assert with_launcher(config("side"), ADDED)["mounts"] == [bind("/data"), bind("/ranks", "ro")]
    assert with_launcher(config("", kind="sandbox"), ADDED) == config("", kind="sandbox")


def test_only_where_there_is_a_launcher_does_exec_cost_a_python() -> None:
    assert "--process" not in wrapper_script("python", "runc").replace('"$previous" = --process', "")
    assert 'runtime.py --process "$process" /run/ranks.json' in wrapper_script("python", "runc", "/run/ranks.json")
