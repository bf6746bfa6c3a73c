"""GPUs and other devices in all models: a cluster in a job, nodes that join, pods that are jobs.

The standing node has both GPUs of n3, which have a type; those of n2 are for jobs that come later.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from e2e.conftest import Kubectl
from e2e.namespaces import image
from e2e.podjobs import events, log_of, manifest, wait_for_phase
from testbed.driver import gpu_uuid
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.conftest import User
    from testbed import Bed

pytestmark = [pytest.mark.bed, pytest.mark.timeout(400)]

LIMIT = 120.0
HERE, OTHER = "n3", "n2"
GPU, FPGA, RDMA = "nvidia.com/gpu", "example.com/fpga", "rdma/hca"
SETTINGS = f"""
idle_seconds = 5
elastic = ["--cpus-per-task=1", "--mem=1500M", "--nodelist={OTHER}"]

[resources]
"{FPGA}" = "fpga"

[devices]
"{FPGA}" = ["/dev/fpga[0-9]*"]
"""
# What a program sees: of NVML, of CUDA by the loader's cache, of files, of variables.
LOOK = """
import ctypes, json, os, subprocess
count = ctypes.c_int()
try:
    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.cuInit(0)
    cuda.cuDeviceGetCount(ctypes.byref(count))
except OSError:
    count.value = -1
try:
    smi = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
except FileNotFoundError:
    smi = ""
files = [name for name in sorted(os.listdir("/dev")) if name.startswith(("nvidia", "fpga", "infiniband"))]
variables = {name: os.environ.get(name) for name in ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")}
print(json.dumps({"smi": smi, "cuda": count.value, "files": files, **variables}), flush=True)
"""
# A GPU that two containers have at a time is claimed twice.
CLAIM = "mkdir /claims/$CUDA_VISIBLE_DEVICES && sleep 0.5 && rmdir /claims/$CUDA_VISIBLE_DEVICES"


@pytest.fixture(scope="module")
def gpus(alice: User) -> Iterator[Kubectl]:
    settings = alice.home / ".local/share/pinnace/pods.toml"
    alice.run("mkdir", "-p", ".local/share/pinnace")
    settings.write_text(SETTINGS)
    try:
        alice.pinnace(
            "up", "--name", "gpus", "-w", HERE, "--gres=gpu:2,fpga:1", "--elastic", "0:1", "--image", "python.tar"
        )
    finally:
        settings.unlink()
    yield Kubectl(user=alice, cluster="gpus")
    alice.pinnace("down", "gpus")


@pytest.fixture
def pair(gpus: Kubectl) -> Iterator[tuple[str, str]]:
    """Two pods that have a GPU of the standing node each, and stay."""
    names = ("one", "two")
    wait_until("devices", lambda: allocatable(gpus, HERE).get(GPU) == "2", limit=60, interval=0.2)
    for name in names:
        gpus.apply(here(asking(name, look(stay=True), gpu=1)))
    yield names
    gpus("delete", "pod", "--ignore-not-found", *names)


def asking(name: str, command: str | list[str], *, metadata: dict[str, Any] | None = None, **wishes: int) -> str:
    """A pod that looks around, or does something else, with devices."""
    argv = ["sh", "-c", command] if isinstance(command, str) else command
    limits = {"gpu": GPU, "fpga": FPGA, "rdma": RDMA}
    resources = {"limits": {limits[wish]: str(count) for wish, count in wishes.items()}}
    return manifest(name, argv, image=image("python"), resources=resources, metadata=metadata or {})


def here(pod: str) -> str:
    """The same pod on the standing node."""
    body = json.loads(pod)
    body["spec"]["nodeSelector"] = {"kubernetes.io/hostname": HERE}
    return json.dumps(body)


def look(*, stay: bool = False) -> list[str]:
    return ["python3", "-c", LOOK + ("import time; time.sleep(3600)" if stay else "")]


def seen(cluster: Kubectl, name: str) -> dict[str, Any]:
    """What a pod that looked around saw."""
    wait_for_phase(cluster, name, "Running", "Succeeded", "Failed")
    said: list[str] = []

    def has_said() -> bool:
        said[:] = log_of(cluster, name).splitlines()
        return bool(said)

    wait_until(f"a word of {name}", has_said, limit=LIMIT, interval=0.3)
    found: dict[str, Any] = json.loads(said[-1])
    return found


def allocatable(cluster: Kubectl, node: str) -> dict[str, str]:
    found: dict[str, str] = cluster.json("get", "node", node)["status"]["allocatable"]
    return found


def uuids(bed: Bed, host: str) -> list[str]:
    return [gpu_uuid(bed.plan.host(host), number) for number in range(2)]


def assert_sees_exactly(view: dict[str, Any], *expected: str) -> None:
    assert {line.split("UUID: ")[1].rstrip(")") for line in view["smi"].splitlines()} == set(expected), view
    assert view["cuda"] == len(expected), view
    for name in ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        assert set(view[name].split(",")) == set(expected)
    assert len([name for name in view["files"] if name.removeprefix("nvidia").isdigit()]) == len(expected), view


def test_a_node_offers_what_slurm_gave_it(gpus: Kubectl) -> None:
    wait_until("devices", lambda: allocatable(gpus, HERE).get(GPU) == "2", limit=30, interval=0.2)
    offered = allocatable(gpus, HERE)
    assert (offered[FPGA], offered[RDMA]) == ("1", "64")
    assert "nvidia.com/gpu" in gpus("describe", "node", HERE)


def test_two_pods_have_a_gpu_each_and_a_third_gets_one_on_a_node_that_joins(
    gpus: Kubectl, pair: tuple[str, str], site: Bed
) -> None:
    views = {name: seen(gpus, name) for name in pair}
    own = {name: view["CUDA_VISIBLE_DEVICES"] for name, view in views.items()}
    assert sorted(own.values()) == uuids(site, HERE)
    for name, view in views.items():
        assert_sees_exactly(view, own[name])
        assert {"nvidiactl", "nvidia-uvm"} <= set(view["files"])
        assert not {"fpga0", "infiniband"} & set(view["files"])
    gpus.apply(asking("three", look(stay=True), gpu=1))
    view = seen(gpus, "three")
    assert view["CUDA_VISIBLE_DEVICES"] in uuids(site, OTHER)
    assert_sees_exactly(view, view["CUDA_VISIBLE_DEVICES"])
    node = gpus.json("get", "pod", "three")["spec"]["nodeName"]
    assert node.startswith("job-")
    gpus("delete", "pod", "three", "--wait=false")


def test_devices_stay_where_they_are_when_their_managers_are_killed(gpus: Kubectl, pair: tuple[str, str]) -> None:
    """Then a pod that ends gives its device back, and that alone."""
    before = {name: seen(gpus, name)["CUDA_VISIBLE_DEVICES"] for name in pair}
    for words in ("pinnace.devices.plugin", "/kubelet --config"):
        gpus.user.run("pkill", "-9", "-u", str(gpus.user.uid), "-f", words, on=HERE)
        wait_until(f"devices after {words}", lambda: allocatable(gpus, HERE).get(GPU) == "2", limit=60, interval=0.2)
    assert {gpus.json("get", "pod", name)["status"]["phase"] for name in before} == {"Running"}
    gpus("delete", "pod", "one")
    gpus.apply(here(asking("next", look(), gpu=1)))
    wait_for_phase(gpus, "next", "Succeeded")
    assert_sees_exactly(seen(gpus, "next"), before["one"])
    gpus("delete", "pod", "next")


def test_a_container_that_asks_for_none_sees_none(gpus: Kubectl) -> None:
    """Images of NVIDIA's say that they want all."""
    body = json.loads(asking("none", look()))
    body["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    gpus.apply(json.dumps(body))
    wait_for_phase(gpus, "none", "Succeeded", "Failed")
    view = seen(gpus, "none")
    assert (view["files"], view["smi"], view["cuda"]) == ([], "", -1)
    gpus("delete", "pod", "none")


def test_what_the_site_maps_and_adapters(gpus: Kubectl) -> None:
    """In the host's network, with the locked memory of the job."""
    locked = gpus.user.run("srun", "-w", HERE, "sh", "-c", "ulimit -Hl").stdout
    script = f"ulimit -Hl; ls /dev/infiniband; python3 -c '{LOOK}'"
    body = json.loads(asking("mapped", script, fpga=1, rdma=1, gpu=2))
    body["spec"]["runtimeClassName"] = "host-network"
    gpus.apply(json.dumps(body))
    wait_for_phase(gpus, "mapped", "Succeeded", "Failed")
    limit, *files, last = log_of(gpus, "mapped").splitlines()
    assert f"{limit}\n" == locked
    assert files == ["rdma_cm", "uverbs0"]
    view = json.loads(last)
    assert len([name for name in view["files"] if name.startswith("fpga")]) == 1
    assert view["cuda"] == 2
    gpus("delete", "pod", "mapped")


def test_no_gpu_is_booked_twice(gpus: Kubectl) -> None:
    gpus.user.run("mkdir", "-p", "claims")
    run_claims(gpus, 10)


def run_claims(cluster: Kubectl, count: int, limit: float = LIMIT) -> None:
    """A Job whose pods have one GPU each, all at once."""
    pod = json.loads(asking("claims", CLAIM, gpu=1))["spec"]
    pod["containers"][0]["volumeMounts"] = [{"name": "claims", "mountPath": "/claims"}]
    pod["volumes"] = [{"name": "claims", "hostPath": {"path": f"/home/{cluster.user.name}/claims"}}]
    spec = {"completions": count, "parallelism": count, "backoffLimit": 0, "template": {"spec": pod}}
    cluster.apply(json.dumps({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "claims"}, "spec": spec}))
    cluster("wait", "--for=condition=Complete", "job/claims", f"--timeout={limit:.0f}s", timeout=limit + 10)
    assert cluster.json("get", "job", "claims")["status"]["succeeded"] == count
    cluster("delete", "job", "claims")


AS_JOB = {"annotations": {"pinnace.dev/run-as": "job", "pinnace.dev/flags": f"--nodelist={OTHER}"}}


def test_a_pod_that_is_a_job(gpus: Kubectl, site: Bed) -> None:
    gpus.apply(asking("job", look(), gpu=1, metadata=AS_JOB))
    wait_for_phase(gpus, "job", "Succeeded", "Failed")
    view = seen(gpus, "job")
    assert view["CUDA_VISIBLE_DEVICES"] in uuids(site, OTHER)
    assert_sees_exactly(view, view["CUDA_VISIBLE_DEVICES"])
    assert gpus.json("get", "pod", "job")["spec"]["nodeName"].startswith("job-")
    gpus("delete", "pod", "job")


def test_more_than_there_is_and_what_no_gres_stands_for(gpus: Kubectl) -> None:
    """In Slurm's words, in Kubernetes', and in ours where neither knows the resource. Nothing hangs."""
    gpus.apply(asking("many-job", look(), gpu=9, metadata=AS_JOB))
    gpus.apply(asking("many", look(), gpu=9))
    body = json.loads(asking("unknown", look(), metadata=AS_JOB))
    body["spec"]["containers"][0]["resources"] = {"limits": {"example.com/unknown": "1"}}
    gpus.apply(json.dumps(body))
    for name, words in (
        ("many-job", "Requested node configuration is not available"),
        ("many", "Insufficient nvidia.com/gpu"),
        ("unknown", "example.com/unknown is not mapped to a GRES"),
    ):
        wait_until(f"words about {name}", lambda n=name, w=words: w in events(gpus, n), limit=60, interval=0.5)  # type: ignore[misc]
    gpus("delete", "pod", "many-job", "many", "unknown")


@pytest.mark.stress
@pytest.mark.timeout(1200)
def test_a_hundred_pods_over_four_gpus(alice: User) -> None:
    alice.run("mkdir", "-p", "claims")
    alice.pinnace("up", "--name", "four", "-N", "2", "-w", "n2,n3", "--gres=gpu:2", "--image", "python.tar")
    try:
        run_claims(Kubectl(user=alice, cluster="four"), 100, limit=900.0)
    finally:
        alice.pinnace("down", "four")
