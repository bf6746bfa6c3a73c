"""Limits of containers hold, without cgroups: memory, CPUs, and disk."""

from __future__ import annotations

import datetime as dt
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from e2e.conftest import Kubectl, User
from e2e.namespaces import Namespace, Object, image, namespace, pod
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.bed

LIMIT = 60.0
TOLERANCE = 20.0  # seconds in which a container must have been killed; it takes half a second on a quiet machine
GROW = """
import time
kept = []
while True:
    kept.append(b"x" * (20 << 20))
    time.sleep(0.1)
"""
BED_CPUS = 2
TAKE = (
    "import time; print(time.time(), flush=True); kept = b'x' * (200 << 20); print('took', flush=True); time.sleep(600)"
)
FAMILY = """
import os, time
print(time.time(), flush=True)
if 0 in [os.fork() for _ in range(4)]:
    kept = b"x" * (30 << 20)
time.sleep(600)
"""
SHARING = """
import os, time
kept = b"x" * (60 << 20)
if 0 not in [os.fork() for _ in range(4)]:
    print("shared", flush=True)
time.sleep(600)
"""
CPUS = "nproc; grep Cpus_allowed_list /proc/self/status | cut -f2; sleep 3600"


def limits(memory: str = "", cpu: str = "") -> Object:
    limited = {key: value for key, value in {"memory": memory, "cpu": cpu}.items() if value}
    return {"resources": {"limits": limited, "requests": {"cpu": "10m", "memory": "10Mi"}}}


def python(name: str, program: str, memory: str, **more: Any) -> Object:
    """A pod whose program may use so much memory."""
    return pod(name, "python3", "-c", program, of="python", container=limits(memory), restartPolicy="Never", **more)


def with_neighbour(made: Object) -> Object:
    neighbour = {"name": "neighbour", "image": image("busybox"), "command": ["sleep", "3600"]} | limits("64Mi")
    made["spec"]["containers"].append(neighbour)
    return made


def in_memory(name: str) -> Object:
    """Fills a volume in memory."""
    script = "date +%s; dd if=/dev/zero of=/fast/file bs=1M count=100 2>/dev/null; sleep 600"
    mounts = {"volumeMounts": [{"name": "fast", "mountPath": "/fast"}]}
    volumes = [{"name": "fast", "emptyDir": {"medium": "Memory"}}]
    return pod(name, "sh", "-c", script, container=limits("64Mi") | mounts, volumes=volumes, restartPolicy="Never")


def on_disk(name: str, volume: Object, container: Object) -> Object:
    """Fills a volume, or its own root, on disk."""
    script = "dd if=/dev/zero of=/data/file bs=1M count=30; dd if=/dev/zero of=/file bs=1M count=30; sleep 600"
    mounts = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    volumes = [{"name": "data", "emptyDir": volume}]
    return pod(name, "sh", "-c", script, container=container | mounts, volumes=volumes, restartPolicy="Never")


def before_all(name: str) -> Object:
    """An init container that uses too much."""
    first = {"name": "first", "image": image("python"), "command": ["python3", "-c", TAKE]} | limits("64Mi")
    return pod(name, initContainers=[first], restartPolicy="Never")


@pytest.fixture(scope="module")
def here(cluster: Kubectl) -> Iterator[Namespace]:
    with namespace(cluster, "limits") as here:
        on_n1: Object = {"nodeName": "n1"}
        here.create(
            with_neighbour(python("greedy", TAKE, "64Mi", **on_n1)),
            with_neighbour(python("one-pid-namespace", TAKE, "64Mi", shareProcessNamespace=True)),
            python("on-host", TAKE, "64Mi", runtimeClassName="host-network"),
            python("family", FAMILY, "64Mi"),
            python("sharing", SHARING, "100Mi"),
            pod("executing", of="python", container=limits("64Mi"), restartPolicy="Never"),
            in_memory("in-memory"),
            before_all("before-all"),
            pod("beside", **on_n1),
            pod("one", "sh", "-c", CPUS, container=limits(cpu="1"), nodeName="n2"),
            pod("half", "sh", "-c", CPUS, container=limits(cpu="500m"), nodeName="n2"),
            pod("best-effort", "cat", "/proc/self/oom_score_adj", restartPolicy="Never"),
            on_disk("large-volume", {"sizeLimit": "10Mi"}, {}),
            on_disk("large-root", {}, {"resources": {"limits": {"ephemeral-storage": "40Mi"}}}),
        )
        yield here


def container_status(here: Namespace, name: str, container: str = "main", kind: str = "containerStatuses") -> Object:
    statuses = here.json("get", "pod", name)["status"].get(kind, ())
    return next((status for status in statuses if status["name"] == container), {"state": {}})


def killed(here: Namespace, name: str, kind: str = "containerStatuses", container: str = "main") -> Object:
    """Wait until a container has ended; gives how."""

    def end() -> Object:
        return dict(container_status(here, name, container, kind)["state"].get("terminated", {}))

    wait_until(f"the end of {name}", lambda: bool(end()), limit=LIMIT)
    return end()


def seconds_since(begin: float, end: Object) -> float:
    return dt.datetime.fromisoformat(end["finishedAt"]).timestamp() - begin


@pytest.mark.parametrize("name", ["greedy", "family", "in-memory", "on-host", "one-pid-namespace"])
def test_a_container_over_its_memory_limit_is_oom_killed(here: Namespace, name: str) -> None:
    end = killed(here, name)
    assert (end["reason"], end["exitCode"]) == ("OOMKilled", 137)
    assert seconds_since(float(here("logs", name, "-c", "main").split()[0]), end) < TOLERANCE


def test_an_init_container_too(here: Namespace) -> None:
    end = killed(here, "before-all", "initContainerStatuses", "first")
    assert (end["reason"], end["exitCode"]) == ("OOMKilled", 137)
    here.wait("pod/before-all", "jsonpath={.status.phase}=Failed")


def test_its_neighbours_live(here: Namespace) -> None:
    for name in ("greedy", "one-pid-namespace"):
        killed(here, name)
    neighbours = (("greedy", "neighbour"), ("one-pid-namespace", "neighbour"), ("beside", "main"), ("sharing", "main"))
    for name, container in neighbours:
        status = container_status(here, name, container)
        assert "running" in status["state"], status
        assert status["restartCount"] == 0


def test_what_forked_processes_share_counts_once(here: Namespace) -> None:
    here.ready("sharing")
    wait_until("the children", lambda: "shared" in here("logs", "sharing"), limit=LIMIT)
    time.sleep(2)
    assert "running" in container_status(here, "sharing")["state"]


def test_a_cpu_limit_is_seen_and_containers_spread(here: Namespace) -> None:
    here.ready("one", "half")
    (count, cpus), (other_count, other_cpus) = (here("logs", name).split() for name in ("one", "half"))
    assert (count, other_count) == ("1", "1")
    assert cpus != other_cpus
    assert here.sh("one", "nproc").split() == ["1"], "what is executed in it, too"
    here.ready("beside")
    assert int(here.sh("beside", "nproc")) <= BED_CPUS


def test_a_process_that_leaves_its_cpus_is_brought_back(here: Namespace) -> None:
    here.ready("one")
    here.sh("one", "taskset -p 3 1")

    def back() -> bool:
        return here.sh("one", "grep Cpus_allowed_list /proc/1/status").split()[1].isdigit()

    wait_until("it to be brought back", back, limit=LIMIT)


def test_what_is_executed_in_a_container_counts(here: Namespace) -> None:
    here.ready("executing")
    here("exec", "executing", "--", "python3", "-c", "import time; kept = b'x' * (200 << 20); time.sleep(60)", code=137)
    assert killed(here, "executing")["reason"] == "OOMKilled"


def test_a_resize_is_refused_because_the_kubelet_would_crash(here: Namespace) -> None:
    change = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "2"}}}]}}
    result = here.run("patch", "pod", "one", "--subresource", "resize", "--patch", json.dumps(change))
    assert result.returncode == 1
    assert "pods cannot be resized in place" in result.stderr


def test_the_kernel_is_told_whom_to_end_first(here: Namespace) -> None:
    assert here.ended("best-effort").split() == ["1000"]
    here.ready("beside", "one")
    assert 2 <= int(here.sh("one", "cat /proc/1/oom_score_adj")) < 1000


@pytest.fixture(scope="module")
def small(alice: User) -> Iterator[Kubectl]:
    """A node of two CPUs and 2 GiB, with pods of all three classes."""
    images = ("--image", "python.tar", "--image", "busybox.tar")
    alice.pinnace("up", "-N", "1", "-c", "2", "--mem", "2G", "--name", "small", *images)
    small = Kubectl(user=alice, cluster="small")
    small("wait", "--for=create", "serviceaccount/default", "--timeout=60s")
    whole = {"resources": {"limits": {"cpu": "1", "memory": "50Mi"}}}
    small.apply(json.dumps(pod("guaranteed", "sh", "-c", CPUS, container=whole)))
    small.apply(json.dumps(pod("burstable", container={"resources": {"requests": {"memory": "50Mi"}}})))
    small.apply(json.dumps(pod("best-effort")))
    small("wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s")
    yield small
    alice.pinnace("down", "small")


def test_a_guaranteed_pod_has_cpus_of_its_own_while_it_is_there(small: Kubectl) -> None:
    def cpus(name: str) -> str:
        return small("exec", name, "--", "grep", "Cpus_allowed_list", "/proc/1/status").split()[1]

    count, own = small("logs", "guaranteed").split()
    assert count == "1"
    for name in ("burstable", "best-effort"):
        assert {cpus(name), own} == {"0", "1"}
        assert small("exec", name, "--", "nproc").strip() == "1"
    small("delete", "pod", "guaranteed", "--wait=true")
    wait_until("the others to return", lambda: cpus("burstable") == cpus("best-effort") == "0-1", limit=LIMIT)


def test_a_node_that_runs_out_of_memory_evicts_the_right_pod_and_lives(small: Kubectl) -> None:
    small.apply(json.dumps(pod("greedy", "python3", "-c", GROW, of="python")))

    def reason() -> str:
        return str(small.json("get", "pod", "greedy")["status"].get("reason", ""))

    wait_until("the eviction", lambda: reason() == "Evicted", limit=LIMIT)

    def says_why() -> bool:  # the kubelet has its own say meanwhile
        status = small.json("get", "pod", "greedy")["status"]
        return status["phase"] == "Failed" and "low on resource: memory" in status.get("message", "")

    wait_until("its words", says_why, limit=LIMIT)
    evictions = ("get", "events", "--field-selector=reason=Evicted")
    wait_until("its event", lambda: "greedy" in small(*evictions), limit=LIMIT)
    time.sleep(2)
    assert reason() == "Evicted", "also when the kubelet has said its own"
    for name in ("burstable", "best-effort"):
        assert small.json("get", "pod", name)["status"]["containerStatuses"][0]["restartCount"] == 0
        small("exec", name, "--", "true")


@pytest.mark.parametrize(("name", "words"), [("large-volume", "data"), ("large-root", "ephemeral")])
def test_a_pod_that_takes_too_much_disk_is_evicted(here: Namespace, name: str, words: str) -> None:
    """The kubelet measures volumes once a minute, so this comes last."""
    wait_until(f"{name} to fail", lambda: here.json("get", "pod", name)["status"]["phase"] == "Failed", limit=2 * LIMIT)
    status = here.json("get", "pod", name)["status"]
    assert status["reason"] == "Evicted"
    assert words in status["message"]
