"""The helper pods of a job: one that follows its output, so that `kubectl logs` works, and pods that copy between its
directory and volumes. They run on nodes that have the job's file system, such as those of a pinnace cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.placement import HEAD_TAINT, RUN_AS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinnace.bridge.slurmjob import Object, SlurmJob

LABEL = "pinnace.dev/slurmjob"
# These satisfy Pod Security "baseline". In a pinnace cluster root in a pod is the user who owns the files; elsewhere
# the pods run with that user's UID, and satisfy "restricted". The hostPath volumes satisfy neither.
CONFINED = {"allowPrivilegeEscalation": False, "seccompProfile": {"type": "RuntimeDefault"}}
NO_CAPABILITIES = {"drop": ["ALL"]}
COPY_CAPABILITIES = {
    "drop": ["ALL"],
    "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER"],
}  # the files of a volume may have any owner
# Where every pod is a job of its own, helper pods are not: they run on the head.
TOLERATIONS = [{"key": HEAD_TAINT.partition(":")[0], "operator": "Exists"}]
# Follows every file that matches the patterns, until the end marker exists; then exits with the job's exit code.
# The first process of a container gets SIGTERM only if it handles it.
FOLLOW = """
trap 'exit 143' TERM; mark=$1; shift; IFS=; last=
while :; do
  over=; for end in $mark; do [ -e "$end" ] && over=$end; done
  for pattern in "$@"; do for file in $pattern; do
    [ -f "$file" ] || continue
    place=${TMPDIR:-/tmp}/at$(echo "$file" | tr -c 'A-Za-z0-9\\n' _); at=0; [ -e "$place" ] && read -r at <"$place"
    size=$(wc -c <"$file"); [ "$size" -gt "$at" ] || continue
    [ -n "$many" ] && [ "$last" != "$file" ] && echo "==> ${file##*/} <==" && last=$file
    tail -c +$((at + 1)) "$file" | head -c $((size - at)); echo "$size" >"$place"
  done; done
  [ -n "$over" ] && exit "$(cat "$over")"
  sleep 0.5
done
"""
COPY = """
set -e
from=$1 to=$2; shift 2; mkdir -p "$to"; cd "$from"
for file in "$@"; do ls -d -- "$file" >/dev/null; done
tar cf - -- "$@" | tar xf - -C "$to"
"""


@dataclass(frozen=True, kw_only=True)
class PodUser:
    """The user of helper pods, where root in a pod is not the user."""

    uid: int
    gid: int

    def context(self) -> Object:
        return {"runAsUser": self.uid, "runAsGroup": self.gid, "fsGroup": self.gid, "runAsNonRoot": True}


def follower(job: SlurmJob, image: str, patterns: Sequence[str], mark: str, *, user: PodUser | None = None) -> Object:
    """The log pod, which has the job's name. If there are several files, their names precede their output."""
    directories = directories_of(patterns, mark)
    many = len(patterns) > 1 or "*" in "".join(patterns)
    container = {
        "name": "log",
        "image": image,
        "command": ["sh", "-c", FOLLOW, "follow", *map(to_be_listed, (mark, *patterns))],
        "securityContext": {**CONFINED, "capabilities": NO_CAPABILITIES},
        "env": [{"name": "many", "value": "1" if many else ""}],
    }
    volumes = [host_path(f"files{number}", path) for number, path in enumerate(directories)]
    mounts = [
        {"name": f"files{number}", "mountPath": path, "readOnly": True} for number, path in enumerate(directories)
    ]
    return pod(job, job.name, container | {"volumeMounts": mounts}, volumes, user)


def to_be_listed(pattern: str) -> str:
    """A pattern for the same files, for which a shell lists their directory: a host may remember for a minute that a
    file was not there when it was looked for by its name.
    """
    last = pattern[-1:]
    return f"{pattern[:-1]}[{last}]" if last.isalnum() else pattern


def directories_of(patterns: Sequence[str], mark: str) -> list[str]:
    """The directories of the node that the log pod for these files mounts."""
    return list(dict.fromkeys(str(PurePosixPath(path).parent) for path in (*patterns, mark)))


def copier(
    job: SlurmJob,
    name: str,
    image: str,
    *,
    directory: str,
    entry: Object,
    what: Sequence[str],
    out: bool,
    user: PodUser | None = None,
) -> Object:
    """A pod that copies results from the job's directory to a volume, or inputs the other way."""
    volume = f"/volume/{entry.get('path', '')}".rstrip("/")
    source, target = (directory, volume) if out else (volume, directory)
    container = {
        "name": "copy",
        "image": image,
        "command": ["sh", "-c", COPY, "copy", source, target, *what],
        "securityContext": {**CONFINED, "capabilities": NO_CAPABILITIES if user else COPY_CAPABILITIES},
        "volumeMounts": [
            {"name": "job", "mountPath": directory},
            {"name": "volume", "mountPath": "/volume", "readOnly": not out},
        ],
    }
    source_of = {key: value for key, value in entry["volume"].items() if key != "name"}  # allowed: `Helpers.copy`
    return pod(job, name, container, [host_path("job", directory), {"name": "volume", **source_of}], user)


def host_path(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "hostPath": {"path": path}}


def pod(job: SlurmJob, name: str, container: Object, volumes: list[Object], user: PodUser | None) -> Object:
    small = {"requests": {"cpu": "1m", "memory": "8Mi"}, "limits": {"cpu": "1", "memory": "128Mi"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "labels": {LABEL: job.name[:63].rstrip("-.")},
            "annotations": {RUN_AS: "node"},
            "ownerReferences": [job.owner()],
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **({"securityContext": user.context()} if user else {}),
            "terminationGracePeriodSeconds": 0,
            "tolerations": TOLERATIONS,
            "containers": [{**container, "imagePullPolicy": "IfNotPresent", "resources": small}],
            "volumes": volumes,
        },
    }
