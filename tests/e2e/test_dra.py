"""Dynamic Resource Allocation: upstream's example driver, unchanged, hands out its devices to pods with claims."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from e2e.namespaces import Namespace, Object, image, namespace, pod
from testbed.images import build_image
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.conftest import Kubectl

pytestmark = pytest.mark.bed

NAME, DRIVER = "dra", "gpu.example.com"
API = "resource.k8s.io"
DEVICES, NODE = 2, "n1"
DIRECTORIES = {
    "registry": "/var/lib/kubelet/plugins_registry",
    "plugins": "/var/lib/kubelet/plugins",
    "cdi": "/var/run/cdi",
}
SHOW = "env | grep ^GPU_DEVICE_ | grep -o 'gpu-[0-9]*$'; sleep 3600"


def role() -> list[Object]:
    """What upstream's chart gives to the driver."""
    rbac = "rbac.authorization.k8s.io"
    everything = ["get", "list", "watch", "create", "update", "patch", "delete"]
    rules = [
        {"apiGroups": [API], "resources": ["resourceclaims"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [API], "resources": ["resourceslices"], "verbs": everything},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
    ]
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": NAME}
    reference = {"apiGroup": rbac, "kind": "ClusterRole", "name": NAME}
    binding = {"subjects": [subject], "roleRef": reference}
    return [
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": NAME}, "rules": rules},
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": NAME}, **binding},
    ]


def driver() -> Object:
    """The driver on one node, as upstream's chart runs it, with the usual directories."""
    variables = {
        "DRIVER_NAME": DRIVER,
        "NUM_DEVICES": str(DEVICES),
        "CDI_ROOT": DIRECTORIES["cdi"],
        "KUBELET_REGISTRAR_DIRECTORY_PATH": DIRECTORIES["registry"],
        "KUBELET_PLUGINS_DIRECTORY_PATH": DIRECTORIES["plugins"],
    }
    node_name = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    container = {
        "name": "plugin",
        "image": image("dra"),
        "command": ["dra-example-kubeletplugin"],
        "securityContext": {"privileged": True},
        "env": [node_name, *({"name": name, "value": value} for name, value in variables.items())],
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in DIRECTORIES.items()],
    }
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": NODE},
        "terminationGracePeriodSeconds": 5,
        "containers": [container],
        "volumes": [{"name": name, "hostPath": {"path": path}} for name, path in DIRECTORIES.items()],
    }
    labels = {"app": "driver"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "driver"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }


def device_class() -> Object:
    selectors = [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]
    return {
        "apiVersion": f"{API}/v1",
        "kind": "DeviceClass",
        "metadata": {"name": DRIVER},
        "spec": {"selectors": selectors},
    }


def claim_template() -> Object:
    requests = [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]
    return {
        "apiVersion": f"{API}/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "one-gpu"},
        "spec": {"spec": {"devices": {"requests": requests}}},
    }


def claiming(name: str) -> Object:
    """A pod that shows which device it has."""
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    return pod(name, "sh", "-c", SHOW, container={"resources": {"claims": [{"name": "gpu"}]}}, resourceClaims=claims)


@pytest.fixture(scope="module")
def here(cluster: Kubectl) -> Iterator[Namespace]:
    shutil.copy(build_image("dra"), cluster.user.home / "dra.tar")
    cluster.user.pinnace("image", "load", "dra.tar")
    with namespace(cluster, NAME) as here:
        here.create(*role(), device_class(), claim_template(), driver())
        yield here
        here("delete", "pod", "--all")  # before the driver, which has to give back what they have
        here("delete", f"deviceclass/{DRIVER}", f"clusterrole/{NAME}", f"clusterrolebinding/{NAME}")


@pytest.mark.timeout(600)  # the first time, the driver is built
def test_pods_get_the_devices_of_a_driver_one_each(here: Namespace) -> None:
    """A pod for which none is left waits, and gets the one that is given back."""

    def slices() -> list[Object]:
        return [found for found in here.json("get", "resourceslices")["items"] if found["spec"]["driver"] == DRIVER]

    wait_until("the driver's devices", lambda: bool(slices()), limit=60, interval=0.3)
    assert [len(found["spec"]["devices"]) for found in slices()] == [DEVICES]

    def device(name: str) -> str:
        here.ready(name)
        wait_until(f"a word of {name}", lambda: bool(here("logs", name)), limit=30, interval=0.3)
        return here("logs", name).strip()

    here.create(claiming("one"), claiming("two"))
    devices = {name: device(name) for name in ("one", "two")}
    assert sorted(devices.values()) == ["gpu-0", "gpu-1"]
    here.create(claiming("three"))
    wait_until("it to wait", lambda: "cannot allocate all claims" in here("describe", "pod", "three"), limit=30)
    here("delete", "pod", "one")
    assert device("three") == devices["one"]
    assert {here.json("get", "pod", name)["spec"]["nodeName"] for name in ("two", "three")} == {NODE}
