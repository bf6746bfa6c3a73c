"""WLM-Operator's SlurmJob and WlmJob as our SlurmJob, and its partitions as nodes: pure functions."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from pinnace.bridge.crds import WLM_WLMJOB
from pinnace.bridge.slurmjob import stamp

if TYPE_CHECKING:
    from collections.abc import Collection

    from pinnace.bridge.slurmjob import Job, Object
    from pinnace.slurm.partitions import Partition

PREFIX = "wlm.sylabs.io/"
OF_A_PARTITION = {"nodes", "wall-time", "mem-per-node", "cpu-per-node"}  # chosen by Slurm from what the job asks for
TAINT = {"key": "virtual-kubelet.io/provider", "value": "wlm", "effect": "NoSchedule"}
LOCAL = "file://"
SWITCHES = {"cleanEnv": "--cleanenv", "fakeRoot": "--fakeroot", "ipc": "--ipc", "noPrivs": "--no-privs",
            "pid": "--pid", "writable": "--writable"}  # fmt: skip


def child_name(body: Object) -> str:
    """As WLM called the pods in which its jobs could be seen."""
    suffix = "wlm-job" if body["kind"] == WLM_WLMJOB.kind else "job"
    return f"{body['metadata']['name']}-{suffix}"


def spec_of(body: Object, features: Collection[str]) -> Object:
    """The spec of the SlurmJob that an object of WLM's means. ``features`` are those that the cluster has."""
    spec = body["spec"]
    image = body["kind"] == WLM_WLMJOB.kind
    options = selected(spec.get("nodeSelector") or {}, features)
    if image:
        options |= resources(spec.get("resources") or {})
    child: Object = {"script": image_script(spec) if image else spec["batch"], "options": options}
    if found := spec.get("results"):
        volume = {key: value for key, value in found["mount"].items() if key != "name"}
        child["results"] = [{"from": found["from"], "volume": volume, "path": child_name(body)}]
    return child


def selected(selector: dict[str, object], features: Collection[str]) -> Object:
    """A selector of WLM's nodes names a partition, or a feature with its version. Of what is none here, nothing."""
    options: Object = {}
    wanted = []
    for label, value in selector.items():
        name = label.removeprefix(PREFIX)
        if name == "partition":
            options["partition"] = str(value)
        elif name not in OF_A_PARTITION:
            wanted += [word for word in (f"{name}-{value}", name, str(value)) if word in features][:1]
    return options | ({"constraint": "&".join(wanted)} if wanted else {})


def resources(given: Object) -> Object:
    options: Object = {}
    if given.get("nodes"):
        options["nodes"] = given["nodes"]
    if given.get("cpuPerNode"):
        options["cpusPerTask"] = given["cpuPerNode"]
    if given.get("memPerNode"):
        options["memory"] = given["memPerNode"]  # MB, like Slurm
    if given.get("wallTime"):
        options["time"] = f"0:{given['wallTime']}"
    return options


def image_script(spec: Object) -> str:
    """Run an image: with Apptainer or Singularity where the site has one, and else as a pod in the job itself."""
    image, options = spec["image"], spec.get("options") or {}
    argv = ["run", *(flag for word, flag in SWITCHES.items() if options.get(word))]
    argv += [f"--app={options['app']}"] if options.get("app") else []
    argv += [f"--hostname={options['hostName']}"] if options.get("hostName") else []
    argv += [f"--bind={','.join(options['binds'])}"] if options.get("binds") else []
    local = image.removeprefix(LOCAL)
    where = local if image.startswith(LOCAL) or "://" in image else f"docker://{image}"
    container = {"name": "image", "image": image.removeprefix("docker://"), "workingDir": "/"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "image"},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    return "\n".join(
        [
            "#!/bin/sh",
            "for runtime in apptainer singularity; do",
            f'  if command -v "$runtime" >/dev/null; then exec srun "$runtime" {shlex.join([*argv, where])}; fi',
            "done",
            f"exec pinnace run - <<'POD'\n{json.dumps(pod)}\nPOD",
            "",
        ]
    )


def status_of(child: Job) -> Object:
    """The phase of a pod."""
    if child.finished:
        return {"status": "Succeeded" if child.succeeded else "Failed"}
    return {"status": "Running" if "startTime" in child.status else "Pending"}


def node_name(partition: str) -> str:
    return f"slurm-{partition.lower().replace('_', '-')}"


def node(partition: Partition, *, now: int) -> Object:
    """A partition as a node that takes no pods: what it has is there to be seen."""
    labels = {
        "type": "virtual-kubelet",
        "kubernetes.io/hostname": node_name(partition.name),
        "kubernetes.io/role": "slurm",
        f"{PREFIX}partition": partition.name,
        f"{PREFIX}nodes": str(partition.nodes),
        f"{PREFIX}cpu-per-node": str(partition.cpus),
        f"{PREFIX}mem-per-node": str(partition.memory),
        **{f"{PREFIX}{feature}": "" for feature in partition.features},
    }
    if partition.minutes is not None:
        labels[f"{PREFIX}wall-time"] = str(partition.minutes * 60)
    capacity = {
        "cpu": str(partition.nodes * partition.cpus),
        "memory": f"{partition.nodes * partition.memory}Mi",
        "pods": "0",
    }
    ready = {
        "type": "Ready",
        "status": "True" if partition.up else "False",
        "reason": "PartitionUp" if partition.up else "PartitionDown",
        "message": f"partition {partition.name}",
        "lastHeartbeatTime": stamp(now),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node_name(partition.name), "labels": labels},
        "spec": {"taints": [TAINT], "unschedulable": True},
        "status": {"capacity": capacity, "allocatable": capacity, "conditions": [ready]},
    }
