"""The pods that the bridge makes for a job: one that follows its output, so that `kubectl logs` works, and those that
copy between its directory and volumes. They see the job's files because they run on nodes that do, as in a cluster of
pinnace's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.placement import HEAD_TAINT, RUN_AS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinnace.bridge.slurmjob import Job, Object

LABEL = "pinnace.dev/slurmjob"
# Everything that Pod Security "baseline" asks for. In a cluster of pinnace's, the user whose files these are is root in
# every pod; elsewhere the pods run with that user's uid, and satisfy "restricted". The volumes of the node are neither.
CONFINED = {"allowPrivilegeEscalation": False, "seccompProfile": {"type": "RuntimeDefault"}}
NOTHING = {"drop": ["ALL"]}
COPYING = {"drop": ["ALL"], "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER"]}  # a volume's files may be anybody's
# Where every pod is a job of its own, these are none: they run on the head.
TOLERATED = [{"key": HEAD_TAINT.partition(":")[0], "operator": "Exists"}]
# Every file of the patterns from where it was left off, until the mark is there; then to the end. Ends like the job.
# The first process of a container hears SIGTERM only if it says so.
FOLLOW = """
trap 'exit 143' TERM; mark=$1; shift; IFS=; last=
while :; do
  over=; [ -e "$mark" ] && over=1
  for pattern in "$@"; do for file in $pattern; do
    [ -f "$file" ] || continue
    place=${TMPDIR:-/tmp}/at$(echo "$file" | tr -c 'A-Za-z0-9\\n' _); at=0; [ -e "$place" ] && read -r at <"$place"
    size=$(wc -c <"$file"); [ "$size" -gt "$at" ] || continue
    [ -n "$many" ] && [ "$last" != "$file" ] && echo "==> ${file##*/} <==" && last=$file
    tail -c +$((at + 1)) "$file" | head -c $((size - at)); echo "$size" >"$place"
  done; done
  [ -n "$over" ] && exit "$(cat "$mark")"
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
class Identity:
    """As whom helper pods run where root in a pod is not the user."""

    uid: int
    gid: int

    def context(self) -> Object:
        return {"runAsUser": self.uid, "runAsGroup": self.gid, "fsGroup": self.gid, "runAsNonRoot": True}


def follower(job: Job, image: str, patterns: Sequence[str], mark: str, *, identity: Identity | None = None) -> Object:
    """The pod of the same name as the job. Several files get a line with their name before what they say."""
    directories = directories_of(patterns, mark)
    many = len(patterns) > 1 or "*" in "".join(patterns)
    container = {
        "name": "log",
        "image": image,
        "command": ["sh", "-c", FOLLOW, "follow", mark, *patterns],
        "securityContext": {**CONFINED, "capabilities": NOTHING},
        "env": [{"name": "many", "value": "1" if many else ""}],
    }
    volumes = [host_path(f"files{number}", path) for number, path in enumerate(directories)]
    mounts = [
        {"name": f"files{number}", "mountPath": path, "readOnly": True} for number, path in enumerate(directories)
    ]
    return pod(job, job.name, container | {"volumeMounts": mounts}, volumes, identity)


def directories_of(patterns: Sequence[str], mark: str) -> list[str]:
    """The directories of the node that a pod sees which follows these files."""
    return list(dict.fromkeys(str(PurePosixPath(path).parent) for path in (*patterns, mark)))


def copier(
    job: Job,
    name: str,
    image: str,
    *,
    directory: str,
    entry: Object,
    what: Sequence[str],
    out: bool,
    identity: Identity | None = None,
) -> Object:
    """A pod that copies results from the job's directory to a volume, or inputs the other way."""
    volume = f"/volume/{entry.get('path', '')}".rstrip("/")
    source, target = (directory, volume) if out else (volume, directory)
    container = {
        "name": "copy",
        "image": image,
        "command": ["sh", "-c", COPY, "copy", source, target, *what],
        "securityContext": {**CONFINED, "capabilities": NOTHING if identity else COPYING},
        "volumeMounts": [
            {"name": "job", "mountPath": directory},
            {"name": "volume", "mountPath": "/volume", "readOnly": not out},
        ],
    }
    source_of = {key: value for key, value in entry["volume"].items() if key != "name"}  # allowed: `Helpers.copy`
    return pod(job, name, container, [host_path("job", directory), {"name": "volume", **source_of}], identity)


def host_path(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "hostPath": {"path": path}}


def pod(job: Job, name: str, container: Object, volumes: list[Object], identity: Identity | None) -> Object:
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
            **({"securityContext": identity.context()} if identity else {}),
            "terminationGracePeriodSeconds": 0,
            "tolerations": TOLERATED,
            "containers": [{**container, "imagePullPolicy": "IfNotPresent", "resources": small}],
            "volumes": volumes,
        },
    }
