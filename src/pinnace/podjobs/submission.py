"""From a pod to sbatch's options: pure functions."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pinnace.errors import UsageError
from pinnace.kube.pods import controller_uid
from pinnace.kube.resources import MEMORY, needs
from pinnace.podjobs import pod_annotations
from pinnace.podjobs.node_selection import selection
from pinnace.slurm.allowed_options import check_pod_values, check_restricted, owner_options
from pinnace.slurm.options import argv, merge
from pinnace.slurm.scripts import batch_script
from pinnace.spec import PodReference, agent_argv
from pinnace.validation import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pinnace.podjobs.settings import PodJobSettings
    from pinnace.slurm.options import SbatchOptions

    Object = dict[str, Any]

MIB = Decimal(1 << 20)
GRACE = 60  # seconds before the time limit at which Slurm tells the node
START = 60  # seconds that a node may take to start, on top of a pod's deadline
PLAIN = {"cpu", MEMORY, "ephemeral-storage", "pods"}
TAG = "pinnace"
SUBMITTED = re.compile(rf"\s['\"]?--comment=['\"]?({TAG}:[^\s'\"]+)['\"]?\s*$")  # some versions of Slurm quote words


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What sbatch gets."""

    options: list[str]
    script: str


def tag(cluster: str, uid: str) -> str:
    """The beginning of a job's comment: by it a job is known as a pod's, whoever has submitted it."""
    return f"{TAG}:{cluster}:{uid}"


def claimed(comment: str, cluster: str) -> str | None:
    """The pod, or the elastic node, that a job is for, if it is one of this cluster's."""
    parts = comment.split(":", 3)
    return parts[2] if len(parts) > 2 and parts[:2] == [TAG, cluster] else None


def submitted_for(line: str, cluster: str) -> str | None:
    """The same from the line that submitted a job. Our comment is its last word; what is before it, pods may choose."""
    found = SUBMITTED.search(line)
    return claimed(found[1], cluster) if found else None


def pod_reference(pod: Object) -> PodReference:
    metadata = pod["metadata"]
    return PodReference(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])


def comment(cluster: str, pod: Object, owners: Sequence[Object]) -> str:
    """For squeue and sacct: the cluster, the pod, and to whom it belongs in the end."""
    reference = pod_reference(pod)
    whose = f":{owners[-1]['kind']}/{owners[-1]['metadata']['name']}" if owners else ""
    return plain("the comment", f"{tag(cluster, reference.uid)}:{reference.namespace}/{reference.name}{whose}")


def resource_options(pod: Object, settings: PodJobSettings) -> SbatchOptions:
    """CPUs, memory, scratch and generic resources."""
    wanted = needs(pod)
    options: SbatchOptions = {"cpus-per-task": str(max(1, math.ceil(wanted.get("cpu", Decimal(0)))))}
    memory = wanted.get(MEMORY) or settings.default_memory_mib * MIB
    mib = math.ceil(memory / MIB) + settings.overhead_mib
    if settings.memory == "per-node":
        options["mem"] = f"{mib}M"
    elif settings.memory == "per-cpu":
        options["mem-per-cpu"] = f"{math.ceil(mib / int(options['cpus-per-task'] or 1))}M"
    if settings.exclusive:
        options["exclusive"] = None
    if disk := wanted.get("ephemeral-storage"):
        options["tmp"] = f"{math.ceil(disk / MIB)}M"
    if gres := gres_option(wanted, settings):
        options["gres"] = gres
    return options


def extended_resources(wanted: Mapping[str, Decimal]) -> dict[str, Decimal]:
    """What a pod wants of devices: everything that Kubernetes does not know by itself."""
    return {
        name: amount
        for name, amount in wanted.items()
        if name not in PLAIN and not name.startswith("hugepages-") and amount
    }


def gres_option(wanted: Mapping[str, Decimal], settings: PodJobSettings) -> str:
    """The devices that a pod wants, as sbatch's --gres."""
    gres: dict[str, int] = {}
    for name, amount in extended_resources(wanted).items():
        if name not in settings.gres:
            raise UsageError(
                f"the resource {name} is not mapped to a GRES of Slurm", hint="Put it into [resources] of pods.toml."
            )
        if settings.gres[name]:
            gres[settings.gres[name]] = gres.get(settings.gres[name], 0) + math.ceil(amount)
    return ",".join(f"{name}:{count}" for name, count in sorted(gres.items()))


def least_time(pod: Object) -> int:
    """What a pod with a deadline needs of its job, in seconds; 0 without."""
    seconds = pod["spec"].get("activeDeadlineSeconds")
    return seconds + START + GRACE if seconds else 0


def time_option(pod: Object, settings: PodJobSettings) -> SbatchOptions:
    """The last of those who may share a job needs as long as the first."""
    shared = settings.reuse_seconds if controller_uid(pod) else 0
    return {"time": str(math.ceil((least_time(pod) + shared) / 60))} if least_time(pod) else {}


def priority_options(pod: Object, settings: PodJobSettings) -> SbatchOptions:
    """By the site's table; otherwise what is below the ordinary in Kubernetes is so in Slurm."""
    name, value = pod["spec"].get("priorityClassName", ""), pod["spec"].get("priority", 0)
    if name in settings.priorities:
        return owner_options(settings.priorities[name])
    return {"nice": str(min(-value, 2147483645))} if value < 0 else {}


def job_options(pod: Object, owners: Iterable[Object], settings: PodJobSettings, given: Sequence[str]) -> SbatchOptions:
    """All of them. What is nearer to the pod counts more: cluster, translation, owners' annotations, its own."""
    where, _ = selection(pod)
    also = frozenset(flag.removeprefix("--") for flag in settings.flags)
    things = [*reversed(list(owners)), pod]
    asked = [pod_annotations.options(thing["metadata"].get("annotations", {}), also=also) for thing in things]
    if settings.restricted:
        asked = [check_restricted(options, also=also) for options in asked]
    return merge(
        owner_options(given, also=also),
        check_pod_values({"job-name": pod["metadata"]["name"]}),
        resource_options(pod, settings),
        time_option(pod, settings),
        priority_options(pod, settings),
        check_pod_values(where),
        *asked,
    )


def submission(
    pod: Object,
    owners: Sequence[Object],
    settings: PodJobSettings,
    *,
    cluster: str,
    directory: Path,
    python: str,
    given: Sequence[str] = (),
) -> Submission:
    """The job that becomes the node of a pod."""
    options = job_options(pod, owners, settings, given)
    _, labels = selection(pod)
    agent = agent_argv(directory, "--join", "--pod", str(pod_reference(pod)), python=python)
    agent += [f"--image={name}" for name in local_images(pod)]
    agent += mpi_args(pod, owners, settings)
    agent += [f"--label={key}={value}" for key, value in labels.items()]
    agent += ["--volumes"] if claim_names(pod) else []
    agent += [f"--resource={name}" for name in sorted(extended_resources(needs(pod)))]
    return Submission(
        options=[*argv(options), *fixed_options(directory), f"--comment={comment(cluster, pod, owners)}"],
        script=node_script(agent),
    )


def mpi_args(pod: Object, owners: Sequence[Object], settings: PodJobSettings) -> list[str]:
    """For the agent: which containers are started by mpiexec, and with which flags. The nearest annotation counts."""
    flags = (pod_annotations.mpi_flags(thing["metadata"].get("annotations", {})) for thing in (pod, *owners))
    given = next((text for text in flags if text is not None), None)
    if given is None:
        return []
    if settings.restricted:
        raise UsageError("ranks (mpi-flags) are not for pods of a restricted cluster: they are processes of the host")
    return [
        *(f"--mpi-container={container['name']}" for container in pod["spec"]["containers"]),
        f"--mpi-flags={given}",
    ]


def local_images(pod: Object) -> list[str]:
    """The images that the node can fetch from the user's own store while its kubelet starts: those named in full."""
    containers = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
    names = dict.fromkeys(container["image"] for container in containers)
    return [name for name in names if name.startswith("localhost/") and ":" in name]


def claim_names(pod: Object) -> set[str]:
    """The claims whose volumes a pod mounts; those of ephemeral volumes are made by a controller."""
    names = set()
    for volume in pod["spec"].get("volumes", ()):
        if "persistentVolumeClaim" in volume:
            names.add(volume["persistentVolumeClaim"]["claimName"])
        elif "ephemeral" in volume:
            names.add(f"{pod['metadata']['name']}-{volume['name']}")
    return names


def fixed_options(directory: Path) -> list[str]:
    """What every job of ours has. The agent is the batch script's own process, so Slurm's signals are for it."""
    return [f"--chdir={directory}", f"--output={directory}/logs/job-%j.log", f"--signal=B:TERM@{GRACE}", "--no-requeue"]


def node_script(agent: Sequence[str]) -> str:
    return batch_script([], f"exec {shlex.join(agent)}", shebang="#!/bin/sh")
