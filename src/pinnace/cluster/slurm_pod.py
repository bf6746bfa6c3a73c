"""The pod of a Slurm job that names an image, from the command line and kube-slurm's variables: pure functions."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pinnace.errors import UsageError
from pinnace.slurm.variables import OF_JOBS

if TYPE_CHECKING:
    from collections.abc import Mapping

WORKSPACE = "/workspace"  # where kube-slurm puts KUBE_WORK_VOLUME
INIT_TIMEOUT = 600.0  # seconds until the pod has to run
KUBE_SLURM_VARIABLES = {"KUBE_IMAGE", "KUBE_SCRIPT", "KUBE_SCRIPT_VARS", "KUBE_WORK_VOLUME", "KUBE_DATA_VOLUME",
                        "KUBE_NAMESPACE", "KUBE_INIT_TIMEOUT"}  # fmt: skip
TOLERATIONS = [{"operator": "Exists"}]  # the node is there for this pod


@dataclass(frozen=True, kw_only=True)
class SlurmPod:
    """What the pod of a Slurm job runs, and where. ``as_user`` is for clusters in which root is not the user."""

    name: str
    namespace: str
    image: str
    command: tuple[str, ...]
    directory: str
    volumes: tuple[tuple[str, str], ...]  # of the host, in the pod
    variables: dict[str, str]
    timeout: float
    as_user: tuple[int, int] | None = None
    gpus: int = 0


def slurm_pod(
    environment: Mapping[str, str],
    *,
    image: str = "",
    script: str = "",
    command: tuple[str, ...] = (),
    namespace: str = "",
    as_user: tuple[int, int] | None = None,
) -> SlurmPod:
    """The pod that the command line and kube-slurm's variables ask for; the command line overrides the variables."""
    image = image or environment.get("KUBE_IMAGE", "")
    script = script or environment.get("KUBE_SCRIPT", "")
    if not image:
        raise UsageError("no image is named", hint="Give --image, or set KUBE_IMAGE.")
    if script and not command:
        command = ("bash", script, *shlex.split(environment.get("KUBE_SCRIPT_VARS", "")))
    home, data, work = (environment.get(name, "") for name in ("HOME", "KUBE_DATA_VOLUME", "KUBE_WORK_VOLUME"))
    mounts = [(path, path) for path in (home, data) if path] + ([(work, WORKSPACE)] if work else [])
    try:
        timeout = float(environment.get("KUBE_INIT_TIMEOUT") or INIT_TIMEOUT)
    except ValueError:
        raise UsageError(f"KUBE_INIT_TIMEOUT is no number of seconds: {environment['KUBE_INIT_TIMEOUT']}") from None
    task = environment.get("SLURM_PROCID", "0")
    return SlurmPod(
        name="-".join(["slurm-job", environment["SLURM_JOB_ID"], *([task] if task != "0" else [])]),
        namespace=namespace or environment.get("KUBE_NAMESPACE") or "default",
        image=image,
        command=command,
        directory=home if script else "",
        volumes=tuple(dict.fromkeys(mounts)),
        variables=variables(environment),
        timeout=timeout,
        as_user=as_user,
        gpus=int(environment.get("SLURM_GPUS") or 0) if as_user else 0,
    )


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What the job knows of itself, and kube-slurm's own variables. Others may be secrets, as SLURM_JWT is."""
    known = {name: value for name, value in environment.items() if name in OF_JOBS or name in KUBE_SLURM_VARIABLES}
    return known | ({"HOME": environment["HOME"]} if "HOME" in environment else {})


def pod_manifest(pod: SlurmPod, node: str) -> dict[str, Any]:
    """The pod's manifest, bound to the node of the host that Slurm chose."""
    names = [f"v{number}" for number in range(len(pod.volumes))]
    container: dict[str, Any] = {
        "name": "main",
        "image": pod.image,
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": name, "value": value} for name, value in sorted(pod.variables.items())],
        "volumeMounts": [
            {"name": name, "mountPath": inside} for name, (_, inside) in zip(names, pod.volumes, strict=True)
        ],
    }
    if pod.command:
        container["command"] = list(pod.command)
    if pod.directory:
        container["workingDir"] = pod.directory
    if pod.gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": pod.gpus}}
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        # A node of ours is this pod's alone, and nobody is to look for another.
        **({"nodeSelector": {"kubernetes.io/hostname": node}} if pod.as_user else {"nodeName": node}),
        "tolerations": TOLERATIONS,
        "terminationGracePeriodSeconds": 10,
        "enableServiceLinks": False,
        "containers": [container],
        "volumes": [
            {"name": name, "hostPath": {"path": outside, "type": "Directory"}}
            for name, (outside, _) in zip(names, pod.volumes, strict=True)
        ],
    }
    if pod.as_user:
        uid, gid = pod.as_user
        spec["securityContext"] = {"runAsUser": uid, "runAsGroup": gid}
    metadata = {"name": pod.name, "namespace": pod.namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
