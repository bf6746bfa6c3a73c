"""Volumes: on the shared file system and on scratch, as pods use them, and what is left of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from e2e.conftest import Kubectl
from e2e.left import remove_left
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from e2e.conftest import User

pytestmark = pytest.mark.bed

CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %(name)s}
spec:
  accessModes: [%(mode)s]
  %(storage_class)s
  resources: {requests: {storage: 1Gi}}
---
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: %(name)s}
spec:
  nodeSelector: {kubernetes.io/hostname: %(node)s}
  terminationGracePeriodSeconds: 0
  securityContext: {%(security)s}
  volumes: [{name: data, persistentVolumeClaim: {claimName: %(claim)s}}]
  containers:
    - name: main
      image: localhost/pinnace-test/busybox:1
      command: [sleep, "3600"]
      volumeMounts: [{name: data, mountPath: /data}]
---
"""
STATEFUL = """
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, selector: {app: db}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
        - name: main
          image: localhost/pinnace-test/busybox:1
          command: [sh, -c, "echo $HOSTNAME >> /data/starts; sleep 3600"]
          volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
    - metadata: {name: data}
      spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 100Mi}}}
"""
NOT_OURS = """
apiVersion: v1
kind: PersistentVolume
metadata: {name: not-ours, annotations: {pv.kubernetes.io/provisioned-by: pinnace.dev/shared}}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Delete
  storageClassName: shared
  local: {path: /home/alice/precious}
  claimRef: {apiVersion: v1, kind: PersistentVolumeClaim, namespace: default, name: gone, uid: some-uid}
  nodeAffinity:
    required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: Exists}]}]}
"""


def claim(name: str, storage_class: str | None = None, mode: str = "ReadWriteOnce") -> str:
    line = f"storageClassName: {storage_class}" if storage_class else ""
    return CLAIM % {"name": name, "mode": mode, "storage_class": line}


def pod(name: str, claim_name: str, node: str = "n1", security: str = "") -> str:
    return POD % {"name": name, "claim": claim_name, "node": node, "security": security}


def volumes(user: User, cluster: str) -> Path:
    """Where the documentation says that they are."""
    return user.home / ".local/share/pinnace/volumes" / cluster


def directory_of(kubectl: Kubectl, claim_name: str) -> Path:
    """A shared volume's directory, from outside."""
    uid = kubectl.json("get", "pvc", claim_name)["metadata"]["uid"].replace("-", "")
    return volumes(kubectl.user, kubectl.cluster) / f"default-{claim_name}-{uid[:12]}"


def wait_bound(kubectl: Kubectl, *names: str) -> None:
    claims = [f"pvc/{name}" for name in names]
    kubectl("wait", "--for=jsonpath={.status.phase}=Bound", *claims, "--timeout=120s")


def wait_ready(kubectl: Kubectl, *names: str) -> None:
    kubectl("wait", "--for=condition=Ready", *(f"pod/{name}" for name in names), "--timeout=120s")


def sh(kubectl: Kubectl, name: str, script: str) -> str:
    return kubectl("exec", name, "--", "sh", "-c", script)


def storage_restarts(kubectl: Kubectl) -> int:
    """How often the head's provisioner was restarted, once it runs again."""
    rows = json.loads(kubectl.user.pinnace("status", kubectl.cluster, "-o", "json").stdout)["services"]
    return next((r["restarts"] for r in rows if r["name"] == "storage" and r["state"] == "running"), -1)


@pytest.fixture
def kubectl(cluster: Kubectl) -> Iterator[Kubectl]:
    """The shared cluster; whatever pods and claims a test makes there are gone after it."""
    before = set(cluster("get", "pods,pvc", "-o", "name").split())
    yield cluster
    made = set(cluster("get", "pods,pvc", "-o", "name").split()) - before
    if made:
        cluster("delete", *made)


def test_pods_on_two_nodes_share_a_volume_of_the_default_class(kubectl: Kubectl) -> None:
    kubectl.apply(claim("common", mode="ReadWriteMany") + pod("writer", "common", "n1") + pod("reader", "common", "n2"))
    wait_ready(kubectl, "writer", "reader")
    assert kubectl.json("get", "pvc", "common")["spec"]["storageClassName"] == "shared"
    sh(kubectl, "writer", "echo from n1 > /data/file")
    assert sh(kubectl, "reader", "cat /data/file") == "from n1\n"
    assert (directory_of(kubectl, "common") / "file").read_text() == "from n1\n"


def test_volumes_are_closed_to_other_users(kubectl: Kubectl) -> None:
    kubectl.apply(claim("private"))
    wait_bound(kubectl, "private")
    root = f"/home/alice/.local/share/pinnace/volumes/{kubectl.cluster}"
    name = directory_of(kubectl, "private").name
    wait_until("it to be alone", lambda: kubectl.user.run("ls", root).stdout.split() == [name], limit=60, interval=0.2)
    for path in (root, f"{root}/{name}"):
        assert kubectl.user.bed.run(["ls", path], user="bob", check=False).returncode != 0


def test_a_stateful_set_finds_its_data_again(kubectl: Kubectl) -> None:
    kubectl.apply(STATEFUL)
    try:
        kubectl("rollout", "status", "statefulset/db", "--timeout=120s")
        kubectl("delete", "pod", "db-0", "db-1")
        kubectl("rollout", "status", "statefulset/db", "--timeout=120s")
        wait_ready(kubectl, "db-0", "db-1")
        for name in ("db-0", "db-1"):
            assert sh(kubectl, name, "cat /data/starts").split() == [name, name]
    finally:
        kubectl("delete", "statefulset/db", "service/db")


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_scratch_is_made_on_the_node_of_the_first_pod(kubectl: Kubectl, node: str) -> None:
    bed, name = kubectl.user.bed, f"fast-{node}"
    kubectl.apply(claim(name, "scratch") + claim(f"{name}-bound"))
    wait_bound(kubectl, f"{name}-bound")  # by now the other one would be, if it were bound at once
    assert kubectl.json("get", "pvc", name)["status"]["phase"] == "Pending"
    kubectl.apply(pod(name, name, node))
    wait_ready(kubectl, name)
    sh(kubectl, name, "echo quick > /data/file")
    volume = kubectl.json("get", "pv", kubectl.json("get", "pvc", name)["spec"]["volumeName"])
    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]
    find = ["find", "/tmp", "-ignore_readdir_race", "-path", f"*/volumes/default-{name}-*/file"]
    assert len(bed.run(find, user="root", on=node).stdout.split()) == 1
    other = "n2" if node == "n1" else "n1"
    assert not bed.run(find, user="root", on=other).stdout
    kubectl("delete", "pod", name)
    kubectl("delete", "pvc", name)
    kubectl("wait", "--for=delete", f"pv/{volume['metadata']['name']}", "--timeout=120s")
    wait_until("its data to go", lambda: not bed.run(find, user="root", on=node).stdout, limit=60)


def test_a_volume_grows(kubectl: Kubectl) -> None:
    kubectl.apply(claim("grows") + pod("grower", "grows"))
    wait_ready(kubectl, "grower")
    kubectl("patch", "pvc", "grows", "-p", json.dumps({"spec": {"resources": {"requests": {"storage": "3Gi"}}}}))
    kubectl("wait", "--for=jsonpath={.status.capacity.storage}=3Gi", "pvc/grows", "--timeout=120s")
    grown = kubectl.json("get", "pvc", "grows")
    assert not grown["status"].get("conditions")
    assert kubectl.json("get", "pv", grown["spec"]["volumeName"])["spec"]["capacity"]["storage"] == "3Gi"


@pytest.mark.parametrize("storage_class", ["shared", "scratch"])
def test_pods_of_another_user_write_and_their_group_is_kept(kubectl: Kubectl, storage_class: str) -> None:
    """And the volume goes, although its files belong to somebody else."""
    name = f"group-{storage_class}"
    security = "runAsUser: 1000, runAsGroup: 3000, fsGroup: 2000, runAsNonRoot: true"
    kubectl.apply(claim(name, storage_class) + pod(name, name, security=security))
    wait_ready(kubectl, name)
    written = sh(kubectl, name, "mkdir -m 700 /data/dir && touch /data/dir/file /data/file && stat -c %u:%g /data/file")
    assert written == "1000:2000\n"
    volume = kubectl.json("get", "pvc", name)["spec"]["volumeName"]
    directory = directory_of(kubectl, name)
    kubectl("delete", "pod", name)
    kubectl("delete", "pvc", name)
    kubectl("wait", "--for=delete", f"pv/{volume}", "--timeout=120s")
    assert not directory.exists()
    trash = directory.parent / ".trash"
    wait_until("its files to go", lambda: not any(trash.iterdir()), limit=60)


def test_a_deleted_claim_takes_its_data_along_unless_it_is_retained(kubectl: Kubectl) -> None:
    kubectl.apply(claim("goes") + claim("stays", "shared-retain") + claim("patched"))
    wait_bound(kubectl, "goes", "stays", "patched")
    directories = {name: directory_of(kubectl, name) for name in ("goes", "stays", "patched")}
    objects = {name: kubectl.json("get", "pvc", name)["spec"]["volumeName"] for name in directories}
    assert all(directory.is_dir() for directory in directories.values())
    retain = {"spec": {"persistentVolumeReclaimPolicy": "Retain"}}
    kubectl("patch", "pv", objects["patched"], "-p", json.dumps(retain))
    kubectl("delete", "pvc", *directories)
    kubectl("wait", "--for=delete", f"pv/{objects['goes']}", "--timeout=120s")
    assert not directories["goes"].exists()
    kept = [objects["stays"], objects["patched"]]
    kubectl("wait", "--for=jsonpath={.status.phase}=Released", *(f"pv/{name}" for name in kept), "--timeout=120s")
    kubectl("delete", "pv", *kept, "--timeout=120s")
    for name in ("stays", "patched"):
        assert directories[name].is_dir()
        directories[name].rmdir()


def test_a_volume_that_only_says_that_it_is_ours_is_left_alone(kubectl: Kubectl) -> None:
    kubectl.user.run("mkdir", "-p", "precious")
    kubectl.apply(NOT_OURS)
    kubectl("wait", "--for=jsonpath={.status.phase}=Released", "pv/not-ours", "--timeout=120s")
    log = kubectl.user.home / ".local/share/pinnace/clusters" / kubectl.cluster / "logs/n1/storage.log"
    wait_until("the refusal", lambda: "not-ours says that it is ours and is not" in log.read_text(), limit=60)
    assert (kubectl.user.home / "precious").is_dir()
    kubectl("delete", "pv", "not-ours", "--timeout=120s")
    assert (kubectl.user.home / "precious").is_dir()


def test_what_cannot_be_made_stays_pending_and_says_why(kubectl: Kubectl) -> None:
    kubectl.apply(
        claim("unknown", "no-such-class")
        + claim("wide", "scratch", "ReadWriteMany")
        + pod("wide", "wide")
        + claim("block").replace("accessModes", "volumeMode: Block\n  accessModes")
    )

    def reasons() -> str:
        return kubectl("get", "events", "--field-selector", "reason=ProvisioningFailed", "-o", "jsonpath={..message}")

    wait_until("scratch to refuse", lambda: "scratch is of one node" in reasons(), limit=60)
    wait_until("block devices to be refused", lambda: "no block devices" in reasons(), limit=60)
    kubectl.apply(claim("after"))
    wait_bound(kubectl, "after")
    for name in ("unknown", "wide", "block"):
        assert kubectl.json("get", "pvc", name)["status"]["phase"] == "Pending"
    assert storage_restarts(kubectl) == 0


def test_the_provisioner_may_do_its_work_and_nothing_else(kubectl: Kubectl) -> None:
    who = ("--as", "pinnace:storage", "--all-namespaces")
    assert kubectl("auth", "can-i", "create", "persistentvolumes", *who, code=None).strip() == "yes"
    for verb, what in (("get", "secrets"), ("list", "pods"), ("delete", "persistentvolumeclaims"), ("patch", "nodes")):
        assert kubectl("auth", "can-i", verb, what, *who, code=None).strip() == "no"


def test_a_killed_provisioner_goes_on_and_clears_up(kubectl: Kubectl) -> None:
    """Killed while it makes volumes: all get theirs, and what belongs to nobody goes, but only what was marked."""
    root = volumes(kubectl.user, kubectl.cluster)
    path = f".local/share/pinnace/volumes/{kubectl.cluster}"
    kubectl.user.run("mkdir", f"{path}/default-orphan-0", f"{path}/default-mine-0")
    kubectl.user.run("touch", f"{path}/.ephemeral/default-orphan-0")
    names = [f"many-{number}" for number in range(12)]
    restarts = storage_restarts(kubectl)
    kubectl.apply("".join(claim(name) for name in names))
    kubectl.user.bed.run(["pkill", "-KILL", "-x", "storage"], user="root", on="n1")
    wait_bound(kubectl, *names)
    wait_until("the provisioner to be back", lambda: storage_restarts(kubectl) == restarts + 1, limit=60, interval=0.5)
    assert all(directory_of(kubectl, name).is_dir() for name in names)
    wait_until("the orphan to go", lambda: not (root / "default-orphan-0").exists(), limit=60)
    assert (root / "default-mine-0").is_dir()
    kubectl.user.run("rmdir", f"{path}/default-mine-0")


def small_cluster(user: User, name: str) -> tuple[Kubectl, str]:
    """One node with a retained and an ephemeral volume, in both a file that only its mapped owner may see."""
    user.pinnace("up", "--name", name, "--image", "busybox.tar")
    kubectl = Kubectl(user=user, cluster=name)
    node = kubectl("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
    for what, storage_class in (("kept", "shared-retain"), ("lost", "shared")):
        kubectl.apply(claim(what, storage_class) + pod(what, what, node, security="runAsUser: 1000"))
    wait_ready(kubectl, "kept", "lost")
    for what in ("kept", "lost"):
        sh(kubectl, what, "mkdir -m 700 /data/dir && echo result > /data/dir/file")
    return kubectl, node


def test_retained_data_survives_the_cluster_and_nothing_else_does(bob: User) -> None:
    kubectl, node = small_cluster(bob, "results")
    kept = directory_of(kubectl, "kept")
    # The API comes back, and the provisioner with it.
    bob.bed.run(["pkill", "-KILL", "-u", str(bob.uid), "kube-apiserver"], user="root", on=node)
    late = bob.write("late.yaml", claim("late"))
    wait_until("the API to be back", lambda: kubectl("apply", "-f", late, code=None) != "", limit=60)
    wait_bound(kubectl, "late")
    bob.pinnace("down", "results")
    assert (kept / "dir" / "file").read_text() == "result\n"
    assert [entry.name for entry in volumes(bob, "results").iterdir()] == [kept.name]


def test_volumes_of_a_cluster_that_was_killed_go_with_down(bob: User) -> None:
    """There was no time for an orderly end, and the files belong to a user who only existed in the cluster."""
    kubectl, node = small_cluster(bob, "killed")
    kept, lost = directory_of(kubectl, "kept"), directory_of(kubectl, "lost")
    bob.bed.run(["pkill", "-KILL", "-u", str(bob.uid)], user="root", on=node)
    wait_until("the job to end", lambda: not bob.run("squeue", "--me", "--noheader").stdout, limit=60)
    assert (lost / "dir" / "file").exists()
    bob.pinnace("down", "killed")
    assert not lost.exists()
    assert [entry.name for entry in volumes(bob, "killed").iterdir()] == [kept.name]
    remove_left(bob)
    assert (kept / "dir" / "file").read_text() == "result\n"
