"""A node in a delegated cgroup v2, on a kernel that has one: in a virtual machine, where all is slow.

Every test is about one cluster, and they are in the order of its life.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.virtual_machine import virtual_machine
from testbed.images.build import build_image

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.virtual_machine import VirtualMachine

pytestmark = [pytest.mark.vm, pytest.mark.timeout(3600)]

PROJECT = Path(__file__).parents[2]
SHARE = Path("~/.local/share/pinnace").expanduser()
IMAGE = "localhost/pinnace-test/python:1"
DELEGATED = "/sys/fs/cgroup/delegated"
MIB = 1 << 20
SLOW = 1500.0  # seconds of the machine, for what takes two on a host
BUSY = "import os; os.fork()\nwhile True: pass"
AGENT = "[p]innace.node --cluster"  # also of all that it forks
GREEDY = "kept = bytearray(200 << 20); import time; time.sleep(600)"


def pod(name: str, program: str, **resources: dict[str, str]) -> dict[str, Any]:
    container = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": ["python3", "-c", program]}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {**spec, "containers": [container | {"resources": resources}]},
    }


PODS = [
    pod("one", BUSY, limits={"memory": "100Mi", "cpu": "500m"}),
    pod("greedy", GREEDY, limits={"memory": "64Mi"}),
]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VirtualMachine]:
    """A machine with a cluster in a delegated cgroup."""
    manifest = tmp_path_factory.mktemp("manifest") / "pods.json"
    manifest.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": PODS}))
    image, cache = build_image("python"), Path(os.environ.get("TESTBED_CACHE") or "/var/cache/testbed")
    with virtual_machine(PROJECT, SHARE, cache, [image, manifest]) as machine:
        start(machine, "one", f"--image /run/disk/{image.name}")
        machine.ok("pinnace kubectl apply --validate=false -f /run/disk/pods.json", timeout=SLOW)
        yield machine


def start(machine: VirtualMachine, name: str, *options: str, cgroup: str = "delegated") -> None:
    """Start a cluster beside us, in the delegated cgroup, and wait until it is ready."""
    command = f"pinnace up --local --name {name} {' '.join(options)}"
    machine.ok(f"setsid nohup {command} >{name}.log 2>&1 </dev/null &", cgroup=cgroup)
    machine.ok(f"until grep -q 'Next: kubectl' {name}.log; do sleep 1; done", timeout=SLOW)


def cgroups(machine: VirtualMachine) -> list[str]:
    """All cgroups below the delegated one."""
    return machine.ok(f"find {DELEGATED} -mindepth 1 -type d -printf '%P\\n'").split()


def nodes(machine: VirtualMachine) -> list[str]:
    """Those of them that are nodes'."""
    return [name for name in cgroups(machine) if re.fullmatch(r"pinnace-1000-[0-9a-f]+", name)]


def assert_nothing_is_left(machine: VirtualMachine) -> None:
    machine.ok(f"while [ -e {DELEGATED}/pinnace ]; do sleep 1; done", timeout=SLOW)
    assert cgroups(machine) == []
    assert machine.ok(f"cat {DELEGATED}/cgroup.subtree_control").strip() == ""


def in_pod(machine: VirtualMachine, file: str) -> str:
    """A file of the pod's own cgroup, as the pod sees it."""
    return machine.ok(f"pinnace kubectl exec one -- cat /sys/fs/cgroup/{file}", timeout=SLOW).strip()


def resize(memory: str, cpu: str) -> str:
    """The command that resizes the pod in place; its QoS class has to stay."""
    limits = {"memory": memory, "cpu": cpu}
    change = {"spec": {"containers": [{"name": "main", "resources": {"limits": limits, "requests": limits}}]}}
    return f"pinnace kubectl patch pod one --subresource resize --patch '{json.dumps(change)}'"


def test_a_node_has_cgroups_of_its_own(machine: VirtualMachine) -> None:
    label = "jsonpath={.items[0].metadata.labels.pinnace\\.dev/cgroups}"
    assert machine.ok(f"pinnace kubectl get nodes -o '{label}'", timeout=SLOW) == "true"
    assert "cgroups: delegated (cpuset, cpu, memory, pids)" in machine.ok(
        "cat .local/share/pinnace/clusters/one/logs/job.log"
    )
    assert machine.ok(f"cat {DELEGATED}/cgroup.procs") == ""


def test_the_kernel_ends_a_container_that_takes_more_memory_than_its_limit(machine: VirtualMachine) -> None:
    machine.ok("pinnace kubectl wait --for=jsonpath={.status.phase}=Failed pod/greedy --timeout=20m", timeout=SLOW)
    state = "jsonpath={.status.containerStatuses[0].state.terminated.reason}"
    assert machine.ok(f"pinnace kubectl get pod greedy -o '{state}'", timeout=SLOW) == "OOMKilled"
    assert "OOMKilled" not in machine.ok("cat .local/share/pinnace/clusters/one/logs/vm/limits.log")


def test_a_container_sees_its_limits_and_keeps_to_them(machine: VirtualMachine) -> None:
    machine.ok("pinnace kubectl wait --for=condition=Ready pod/one --timeout=20m", timeout=SLOW)
    assert in_pod(machine, "memory.max") == str(100 * MIB)
    assert in_pod(machine, "cpu.max") == "50000 100000"
    script = "a=$(cat cpu.stat | grep usage_usec); sleep 5; b=$(cat cpu.stat | grep usage_usec); echo ${a#* } ${b#* }"
    where = (
        f"cd $(find {DELEGATED} -path '*kubepods*' -name cpu.max | xargs grep -l '^50000 ' | head -1 | xargs dirname)"
    )
    before, after = map(int, machine.ok(f"{where}; {script}").split())
    assert 1.5 <= (after - before) / 1e6 <= 2.8


def test_a_pod_is_resized_in_place(machine: VirtualMachine) -> None:
    machine.ok(resize("150Mi", "700m"), timeout=SLOW)
    read = "pinnace kubectl exec one -- cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/cpu.max"
    machine.ok(f"until [ \"$({read} | xargs)\" = '{150 * MIB} 70000 100000' ]; do sleep 2; done", timeout=SLOW)
    count = "jsonpath={.status.containerStatuses[0].restartCount}"
    assert machine.ok(f"pinnace kubectl get pod one -o '{count}'", timeout=SLOW) == "0"


def test_the_kubelet_measures_pods(machine: VirtualMachine) -> None:
    summary = json.loads(machine.ok("pinnace kubectl get --raw /api/v1/nodes/vm/proxy/stats/summary", timeout=SLOW))
    [found] = [about for about in summary["pods"] if about["podRef"]["name"] == "one"]
    assert found["containers"][0]["memory"]["workingSetBytes"] > MIB


def test_an_agent_that_is_killed_leaves_no_cgroup_behind(machine: VirtualMachine) -> None:
    """Its monitor, which sees that it is gone, removes them."""
    machine.ok(f"kill -KILL $(pgrep --oldest -f '{AGENT}')")
    assert_nothing_is_left(machine)


def test_where_all_processes_are_killed_the_next_node_removes_the_cgroups(machine: VirtualMachine) -> None:
    start(machine, "two")
    machine.ok(f"pkill -KILL -f '{AGENT}'")
    [left] = nodes(machine)
    start(machine, "three", cgroup="delegated/pinnace")  # as a shell that the first node has moved there
    machine.ok(f"while [ -e {DELEGATED}/{left} ]; do sleep 1; done", timeout=SLOW)
    assert len(nodes(machine)) == 1


def test_nothing_is_left_when_a_cluster_has_ended(machine: VirtualMachine) -> None:
    machine.ok("pinnace down three", timeout=SLOW)
    assert_nothing_is_left(machine)


def test_without_a_delegated_cgroup_a_pod_is_not_resized(machine: VirtualMachine) -> None:
    """The node is one without the label, and its kubelet would crash."""
    start(machine, "four", cgroup="plain")
    machine.ok("pinnace kubectl apply --validate=false -f /run/disk/pods.json", timeout=SLOW)
    machine.ok("pinnace kubectl wait --for=condition=Ready pod/one --timeout=20m", timeout=SLOW)
    result = machine.run(resize("150Mi", "700m"), timeout=SLOW)
    assert result.code == 1
    assert "pods cannot be resized in place: the node has no cgroups" in result.output


def test_the_doctor_says_which_it_is(machine: VirtualMachine) -> None:
    said = machine.run("pinnace doctor", cgroup="delegated", timeout=SLOW).output
    assert "cgroups: delegated (cpuset, cpu, memory, pids)" in said
    assert cgroups(machine) == []
    said = machine.run("pinnace doctor", timeout=SLOW).output
    assert "cgroups: none delegated: limits are kept by polling memory and by CPU affinity" in said
