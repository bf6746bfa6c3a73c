"""What a job needs and what it gives: its script, its environment, its inputs, its results.

Files are touched only where the bridge works with the rights of the user whose job it is (``Backend.files``). Paths
come from the API: nothing is read or written outside the job's directory, symbolic links included, but what the user
names in full.
"""

from __future__ import annotations

import base64
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.bridge import wrapping
from pinnace.bridge.s3 import S3, S3Error, S3PassingError
from pinnace.bridge.slurmjob import seconds_of
from pinnace.bridge.slurms import MissingError, data_of, secret_data
from pinnace.errors import PinnaceError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pinnace.bridge.slurmjob import Job, Object
    from pinnace.controlplane.api import Api

SKEW = 300.0  # seconds that clocks may differ
PLURALS = {"configMap": "configmaps", "secret": "secrets"}


class StagingError(PinnaceError):
    """A script, an input or a result that there is not, or that may not be."""


def script_of(api: Api, job: Job, *, files: bool) -> str:
    """The text that is submitted."""
    if "script" in job.spec:
        return runnable(job.spec["script"])
    source = job.spec["scriptFrom"]
    if "configMap" in source:
        return runnable(key_of(api, job, "configMap", source["configMap"]).decode())
    if "s3" in source:
        return runnable(s3_of(api, job, source["s3"]).read(source["s3"]["key"]).decode())
    if not files:  # somebody else's cluster: all that we can do is to call it there
        return f'#!/bin/sh\nexec {shlex.quote(source["path"])} "$@"\n'
    try:
        return runnable(Path(source["path"]).expanduser().read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise StagingError(f"script {source['path']}: {error}") from error


def runnable(text: str) -> str:
    """sbatch refuses scripts that do not say what runs them; Bridge's and WLM's samples all do."""
    return text if text.startswith("#!") else f"#!/bin/sh\n{text}"


def environment_of(api: Api, job: Job) -> dict[str, str]:
    """The variables, as for a container: first the whole maps, then the single ones."""
    found: dict[str, str] = {}
    for entry in job.spec.get("envFrom", ()):
        for field, plural in (("configMapRef", "configMap"), ("secretRef", "secret")):
            if reference := entry.get(field):
                found |= {f"{entry.get('prefix', '')}{k}": v for k, v in all_of(api, job, plural, reference).items()}
    for entry in job.spec.get("env", ()):
        source = entry.get("valueFrom")
        if not source:
            found[entry["name"]] = entry.get("value", "")
            continue
        field, kind = ("configMapKeyRef", "configMap") if "configMapKeyRef" in source else ("secretKeyRef", "secret")
        try:
            found[entry["name"]] = key_of(api, job, kind, source[field]).decode()
        except MissingError:
            if not source[field].get("optional"):
                raise
    return found


def all_of(api: Api, job: Job, kind: str, reference: Object) -> dict[str, str]:
    try:
        if kind == "secret":
            return secret_data(api, job.namespace, reference["name"])
        return data_of(api, job.namespace, PLURALS[kind], reference["name"])
    except MissingError:
        if reference.get("optional"):
            return {}
        raise


def key_of(api: Api, job: Job, kind: str, reference: Object) -> bytes:
    data = data_of(api, job.namespace, PLURALS[kind], reference["name"])
    if reference["key"] not in data:
        raise MissingError(f"{PLURALS[kind].removesuffix('s')} {reference['name']} has no key {reference['key']}")
    value = data[reference["key"]]
    return base64.b64decode(value) if kind == "secret" else value.encode()


def s3_of(api: Api, job: Job, place: dict[str, Any]) -> S3:
    return S3(place, secret_data(api, job.namespace, place["secret"]))


def inside(directory: Path, name: str) -> Path:
    """A path below a directory, wherever symbolic links lead."""
    path = directory / name
    if not path.resolve().is_relative_to(directory.resolve()):
        raise StagingError(f"{name} is outside {directory}")
    return path


def stage(api: Api, job: Job, directory: Path) -> None:
    """Put the inputs that the bridge can bring into the job's directory; those on volumes come by a pod."""
    for entry in job.spec.get("inputs", ()):
        if "volume" in entry:
            continue
        path = inside(directory, entry["to"])
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if "s3" in entry:
                s3_of(api, job, entry["s3"]).download(entry["s3"]["key"], path)
            elif "from" in entry:
                copy(Path(entry["from"]).expanduser(), path)
            else:
                path.touch(mode=0o600)
                path.write_bytes(content_of(api, job, entry))
        except OSError as error:
            raise StagingError(f"input {entry['to']}: {error}") from error


def content_of(api: Api, job: Job, entry: dict[str, Any]) -> bytes:
    """An input whose content Kubernetes has."""
    kind = next(kind for kind in ("text", *PLURALS) if kind in entry)
    return entry["text"].encode() if kind == "text" else key_of(api, job, kind, entry[kind])


def carrying(api: Api, job: Job, script: str) -> str:
    """A script that brings its inputs and takes its results itself, for where the bridge does not see its files."""
    inputs, results = job.spec.get("inputs", ()), job.spec.get("results", ())
    if any("volume" in entry for entry in (*inputs, *results)):
        raise StagingError("this bridge does not see the files of that cluster, so volumes cannot be used")
    before, after = [], []
    for entry in inputs:
        if "s3" in entry:
            address = s3_of(api, job, entry["s3"]).address_to_get(entry["s3"]["key"])
            before.append(wrapping.fetch(entry["to"], address))
        elif "from" in entry:
            before.append(wrapping.bring(entry["to"], entry["from"]))
        else:
            before.append(wrapping.put(entry["to"], content_of(api, job, entry)))
    for entry in results:
        if "s3" in entry:
            address = s3_of(api, job, entry["s3"]).address_to_put(key_of_result(entry))
            after.append(wrapping.store(entry["from"], address))
        else:
            after.append(wrapping.keep(entry["from"], entry["directory"]))
    return wrapping.wrapped(script, before=before, after=after) if before or after else script


def key_of_result(entry: dict[str, Any]) -> str:
    """Of a file in S3, if it has a name and no pattern: only then the name is known before it is there."""
    if set("*?[") & set(entry["from"]):
        raise StagingError(
            f"result {entry['from']}: a bridge that does not see the job's files takes no patterns to S3"
        )
    return "/".join(filter(None, (entry["s3"].get("prefix", "").strip("/"), entry["from"])))


def check_carried(api: Api, job: Job) -> None:
    """Whether the results that a job was to take to S3 itself are there."""
    for entry in job.spec.get("results", ()):
        if "s3" not in entry:
            continue
        key, begun = key_of_result(entry), seconds_of(job.status["submitTime"])
        try:
            fresh = s3_of(api, job, entry["s3"]).written(key) > begun - SKEW
        except S3PassingError:
            raise
        except S3Error as error:
            raise StagingError(f"{error.message}; the job's output may say why") from error
        if not fresh:
            raise StagingError(f"result {entry['from']} in S3 is older than the job, whose output may say why")


def matches(directory: Path, pattern: str) -> list[Path]:
    """The results that a pattern means; at least one, and none that leads out of the directory."""
    found = [inside(directory, str(path.relative_to(directory))) for path in sorted(directory.glob(pattern))]
    if not found:
        raise StagingError(f"there is no result {pattern} in {directory}")
    return found


def collect(api: Api, job: Job, directory: Path) -> None:
    """Bring the results that the bridge can bring to where they are wanted; those for volumes go by a pod."""
    for entry in job.spec.get("results", ()):
        paths = matches(directory, entry["from"])
        try:
            if "directory" in entry:
                for path in paths:
                    copy(path, Path(entry["directory"]).expanduser() / path.relative_to(directory))
            elif "s3" in entry:
                store, prefix = s3_of(api, job, entry["s3"]), entry["s3"].get("prefix", "").strip("/")
                for file in files_in(paths):
                    store.upload(file, "/".join(filter(None, (prefix, str(file.relative_to(directory))))))
        except OSError as error:
            raise StagingError(f"result {entry['from']}: {error}") from error


def files_in(paths: Iterable[Path]) -> list[Path]:
    return [
        file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*"))) if file.is_file()
    ]


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)
    else:
        shutil.copy2(source, target)
