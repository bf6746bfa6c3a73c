"""The objects that a run creates in a cluster: pods with the tools, claims, SlurmJobs. Pure functions."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from pinnace.slurm.options import argv

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinnace.slurm.options import SbatchOptions

    Object = dict[str, Any]

CLAIMS = {"shared": ("ReadWriteMany", "/bench/shared"), "scratch": ("ReadWriteOnce", "/bench/scratch")}
HOSTNAME = "kubernetes.io/hostname"
FLAGS = "pinnace.dev/flags"


def pod(
    name: str,
    image: str,
    command: Sequence[str],
    *,
    node: str = "",
    flags: SbatchOptions | None = None,
    directory: str = "",
    claims: Sequence[str] = (),
) -> Object:
    """A pod of one container that runs once: on a node of the cluster, or with options as a job of its own.

    ``directory`` of the host is at the same path in it.
    """
    volumes: list[Object] = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
    mounts = [{"name": claim, "mountPath": CLAIMS[claim][1]} for claim in claims]
    if directory:
        volumes.append({"name": "directory", "hostPath": {"path": directory, "type": "Directory"}})
        mounts.append({"name": "directory", "mountPath": directory})
    container = {"name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": list(command),
                 "volumeMounts": mounts}  # fmt: skip
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}, "annotations": flags_annotation(flags)},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "enableServiceLinks": False,
            **({"nodeSelector": {HOSTNAME: node}} if node else {}),
            "containers": [container],
            "volumes": volumes,
        },
    }


def flags_annotation(flags: SbatchOptions | None) -> dict[str, str]:
    return {FLAGS: shlex.join(argv(flags))} if flags else {}


def claim(name: str) -> Object:
    """A claim of the storage class of that name."""
    mode, _ = CLAIMS[name]
    spec = {
        "storageClassName": name,
        "accessModes": [mode],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def slurmjob(name: str, script: str, options: SbatchOptions, *, directory: str) -> Object:
    """A SlurmJob whose files are in a directory of ours, and which no pod follows."""
    given = options | {"chdir": directory, "output": f"{directory}/{name}.out", "error": f"{directory}/{name}.err"}
    spec = {"script": script, "logs": False, "flags": argv(given)}
    return {"apiVersion": "pinnace.dev/v1alpha1", "kind": "SlurmJob", "metadata": {"name": name}, "spec": spec}


def pods_job(name: str, image: str, count: int, flags: SbatchOptions | None = None) -> Object:
    """A Job of pods that end at once."""
    container = {"name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": ["true"]}
    template = {"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}}
    spec = {"completions": count, "parallelism": count, "template": template}
    metadata = {"name": name, "annotations": flags_annotation(flags)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def deployment(name: str, image: str, replicas: int) -> Object:
    container = {"name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": ["sleep", "86400"]}
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 0, "enableServiceLinks": False, "containers": [container]},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def many(objects: Sequence[Object]) -> Object:
    return {"apiVersion": "v1", "kind": "List", "items": list(objects)}
