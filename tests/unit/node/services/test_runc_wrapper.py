"""What the wrapper of runc does to a bundle, and what it leaves alone."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from pinnace.controlplane.objects import HOST_NETWORK
from pinnace.node.limits.affinity import AFFINITY, CpuPool
from pinnace.node.limits.container_limits import ContainerLimits
from pinnace.node.limits.limiter import Limiter
from pinnace.node.services.host_network import Host
from pinnace.node.services.runc_wrapper import (
    DEFAULT_HANDLER,
    DEFAULT_PATH,
    PING,
    Edits,
    Requests,
    answer,
    edit,
    for_one_architecture,
    is_read_only,
    keeping_read_only,
    with_environment,
    with_known_groups,
    with_launcher,
    with_ping,
    without_cgroups,
    wrapper_script,
)
from pinnace.node.services.user_groups import MARK
from pinnace.podjobs import held_pods
from pinnace.podjobs.held_pods import HeldPods
from pinnace.sandbox.ids import last_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


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


def test_the_sandbox_is_filtered_for_one_architecture_and_others_for_all() -> None:
    profile = {"defaultAction": "SCMP_ACT_ERRNO", "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"]}
    narrowed = for_one_architecture(sandbox(seccomp=profile))["linux"]["seccomp"]
    assert narrowed == profile | {"architectures": ["SCMP_ARCH_X86_64"]}
    for other in (sandbox(kind="container", seccomp=profile), sandbox()):
        assert for_one_architecture(other) == other


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


HOST = Host(address="192.0.2.7", resolv_conf="/resolv.conf", api=("192.0.2.1", 443), api_service="", api_names=(),
            name_servers=frozenset())  # fmt: skip


OWN = frozenset(os.sched_getaffinity(0))


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


@pytest.fixture
def wrapped(tmp_path: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """The wrapper, with a runtime that shows how it was called and what it found, and somebody who answers it."""
    requests = Requests(tmp_path / "ask")
    runtime = tmp_path / "runc it is"
    runtime.write_text('#!/bin/sh\necho "$@"; ls /proc/self/fd; cat "$3"*; echo "$KEPT"\n')
    runtime.chmod(0o755)
    script = tmp_path / "wrapper"

    (tmp_path / "tasks").mkdir()
    pool = CpuPool(available=OWN, permitted=OWN)
    limiter = Limiter(pool=pool, tasks=tmp_path / "tasks", run_directory=tmp_path)
    edits = Edits(launcher=ADDED, host=lambda: HOST, notify="", limiter=limiter, keep_groups=True)

    def run(
        *words: str, handler: str = DEFAULT_HANDLER, launcher: bool = False, said: str = ""
    ) -> subprocess.CompletedProcess[str]:
        script.write_text(
            wrapper_script(
                str(runtime),
                str(tmp_path / "ask"),
                launcher=launcher,
                handler=handler,
                keeper=["/usr/bin/env", "KEPT=the groups"],
                tasks=str(tmp_path / "tasks"),
            )
        )
        script.chmod(0o755)
        pipe = subprocess.PIPE
        with subprocess.Popen([script, *words], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
            assert process.stdin
            with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
                stdin.write(said)
            process.stdin = None
            marks = [tmp_path / "tasks" / words[-1] / mark for mark in (AFFINITY, held_pods.MARK)]
            asks = words[0] == "create" or any(mark.exists() for mark in marks)  # else it must not
            if select.select([requests.descriptor], [], [], 10 if asks or launcher else 0.2)[0]:
                for request in requests.read():
                    answer(request, edits)
            output, errors = process.communicate(timeout=10)
        return subprocess.CompletedProcess(words, process.returncode, output, errors)

    yield run
    os.close(requests.descriptor)


def test_the_runtime_finds_the_bundle_edited_and_nothing_else(
    wrapped: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    config = sandbox("network", cgroupsPath="/x") | {"mounts": []}
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = wrapped("create", "--bundle", str(tmp_path), "--pid-file", "two words", "name")
    called, *descriptors = result.stdout.splitlines()
    assert called == f"create --bundle {tmp_path} --pid-file two words name"
    assert "9" not in descriptors
    assert "cgroupsPath" not in (tmp_path / "config.json").read_text()
    assert PING in (tmp_path / "config.json").read_text()
    assert not (tmp_path / "config.json.answer").exists()


def test_what_is_executed_in_a_container_finds_the_launcher(
    wrapped: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "process").write_text(json.dumps(process("PATH=/bin")))
    words = ("exec", "--process", str(tmp_path / "process"), "name")
    assert "/run/pinnace/bin:/bin" in wrapped(*words, launcher=True).stdout


def test_the_runtime_handler_decides_about_the_network(
    wrapped: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    config = sandbox("pid", "network") | {"mounts": [], "process": process()}
    for handler, types in ((DEFAULT_HANDLER, ["pid", "network"]), (HOST_NETWORK, ["pid"])):
        (tmp_path / "config.json").write_text(json.dumps(config))
        wrapped("create", "--bundle", str(tmp_path), "name", handler=handler)
        edited = json.loads((tmp_path / "config.json").read_text())
        assert [namespace["type"] for namespace in edited["linux"]["namespaces"]] == types
        assert (PING in edited["linux"]["sysctl"]) is ("network" in types)
    (tmp_path / "process").write_text(json.dumps(process()))
    said = wrapped("exec", "--process", str(tmp_path / "process"), "name", handler=HOST_NETWORK, launcher=True).stdout
    assert "PINNACE_HOST_ADDRESS=192.0.2.7" in said


def test_the_runtime_is_not_called_for_a_bundle_that_cannot_be_edited(
    wrapped: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    result = wrapped("create", "--bundle", str(tmp_path), "name")
    assert result.returncode == 1
    assert "could not edit" in result.stderr
    assert not result.stdout


@pytest.mark.skipif(len(OWN) < 2, reason="there is one CPU")
def test_a_container_with_a_cpu_limit_from_its_creation_to_its_resize(
    wrapped: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    def resources(quota: int, memory: int = 64 << 20) -> dict[str, Any]:
        return {"memory": {"limit": memory}, "cpu": {"quota": quota, "period": 100_000, "shares": 2}}

    bundle = tmp_path / "tasks" / "name"
    bundle.mkdir()
    config = sandbox("pid", kind="container", cgroupsPath="/x", resources=resources(50_000)) | {"mounts": []}
    config |= {"process": process() | {"oomScoreAdj": 999, "user": {"uid": 0, "gid": 0}}}
    (bundle / "config.json").write_text(json.dumps(config))
    (tmp_path / "process").write_text(json.dumps(process()))
    execute = ("exec", "--process", str(tmp_path / "process"), "name")
    assert "execCPUAffinity" not in wrapped(*execute).stdout, "nobody is asked"

    wrapped("create", "--bundle", str(bundle), "name")
    assert ContainerLimits.read(bundle) == ContainerLimits(memory=64 << 20, cpus=1)
    assert "resources" not in json.loads((bundle / "config.json").read_text())["linux"]
    given = (bundle / AFFINITY).read_text()

    with subprocess.Popen(["sleep", "60"]) as waiting:
        (bundle / "init.pid").write_text(str(waiting.pid))
        assert wrapped("start", "name").stdout.startswith("start name")
        assert os.sched_getaffinity(waiting.pid) == {int(given)}
        waiting.kill()
    assert f'"execCPUAffinity": {{"final": "{given}"}}' in wrapped(*execute).stdout

    larger = json.dumps(resources(len(OWN) * 100_000, 128 << 20))
    result = wrapped("update", "--resources=-", "name", said=larger)
    assert (result.returncode, result.stdout) == (0, ""), "runc could only change a cgroup"
    assert ContainerLimits.read(bundle) == ContainerLimits(memory=128 << 20, cpus=len(OWN))
    assert not (bundle / AFFINITY).exists()
    assert wrapped("update", "--resources=-", "gone", said=larger).returncode == 1


def test_the_start_of_a_container_waits_while_its_pod_is_held(
    wrapped: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_pods, "KUBELET", tmp_path / "kubelet")
    held = HeldPods(tmp_path / "kubelet")
    held.hold("a")
    bundle = tmp_path / "tasks" / "name"
    bundle.mkdir()
    (bundle / held_pods.MARK).write_text("a")
    timer = threading.Timer(0.5, held.release, ["a"])
    begin = time.monotonic()
    timer.start()
    assert wrapped("start", "name").stdout.startswith("start name")
    assert time.monotonic() - begin >= 0.5
    timer.join()


def test_where_there_are_cgroups_they_are_runcs(tmp_path: Path) -> None:
    config = sandbox("pid", kind="container", cgroupsPath="/x", resources={"memory": {"limit": 1}}) | {"mounts": []}
    bundle = tmp_path / "name"
    bundle.mkdir()
    (bundle / "config.json").write_text(json.dumps(config | {"process": process()}))
    edits = Edits(launcher=None, host=lambda: HOST, notify="", limiter=None)
    edit("create", "name", bundle / "config.json", edits, None)
    edited = json.loads((bundle / "config.json").read_text())["linux"]
    assert (edited["cgroupsPath"], edited["resources"]) == ("/x", {"memory": {"limit": 1}})
    assert [path.name for path in bundle.iterdir()] == ["config.json"]
    (bundle / "process").write_text(json.dumps(process()))
    edit("exec", "name", bundle / "process", edits, None)
    assert "execCPUAffinity" not in (bundle / "process").read_text()


def test_where_there_are_cgroups_a_resize_is_runcs(tmp_path: Path) -> None:
    script = tmp_path / "wrapper"
    script.write_text(wrapper_script("/bin/echo", str(tmp_path / "nobody"), launcher=False, cgroups=True))
    script.chmod(0o755)
    for words in (["update", "--resources=-", "name"], ["start", "name"]):
        done = subprocess.run([script, *words], capture_output=True, text=True, check=True, timeout=10)
        assert done.stdout.split() == words


def test_a_container_that_keeps_the_users_groups_does_so_in_all_that_is_executed_in_it(
    wrapped: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    for name, groups, kept in (("of-the-user", [0], True), ("of-its-own", [0, 1234], False)):
        bundle = tmp_path / "tasks" / name
        bundle.mkdir(parents=True)
        user = {"uid": 0, "gid": 0, "additionalGids": groups}
        config = sandbox("network", kind="container") | {"mounts": [], "process": process() | {"user": user}}
        (bundle / "config.json").write_text(json.dumps(config))
        (tmp_path / "process").write_text(json.dumps(process()))
        assert ("the groups" in wrapped("create", "--bundle", str(bundle), name).stdout) is kept
        assert ("the groups" in wrapped("exec", "--process", str(tmp_path / "process"), name).stdout) is kept
        assert "the groups" not in wrapped("delete", "--force", name).stdout, "this changes no user"


def test_without_groups_to_keep_the_wrapper_does_not_look_for_them() -> None:
    assert MARK not in wrapper_script("runc", "ask", launcher=False)


def test_all_else_is_none_of_our_business(wrapped: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    assert wrapped("delete", "--force", "name").stdout.startswith("delete --force name")
