"""The script, environment, inputs and results of a job.

Files are accessed only where the bridge runs as the job's user (``Backend.files``). Paths come from the API: nothing is
read or written outside the job's directory, symbolic links included, except at absolute paths that the user gives (see
``files``).
"""

from __future__ import annotations

import base64
import os
import shlex
import stat
from functools import partial
from typing import TYPE_CHECKING, Any

from pinnace.bridge import files, wrapping
from pinnace.bridge.connections import data_of, secret_data
from pinnace.bridge.files import CopyBudget, Tree
from pinnace.bridge.s3 import S3
from pinnace.bridge.slurmjob import MAX_CLOCK_SKEW, seconds_of
from pinnace.errors import MissingError, S3Error, S3TransientError, StagingError
from pinnace.validation import VARIABLE, plain, printable, variable_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pinnace.bridge.policy import Policy
    from pinnace.bridge.slurmjob import Object, SlurmJob
    from pinnace.kube.client import Api

MAX_SCRIPT_SIZE = 1 << 20  # bytes of a script that is read from a file, a ConfigMap or S3
MAX_JOB_SIZE = 4 << 20  # bytes of script, arguments and variables: Slurm's own limit for a script
PLURALS = {"configMap": "configmaps", "secret": "secrets"}


def script_of(api: Api, job: SlurmJob, policy: Policy, *, visible: bool) -> str:
    """The script to submit. With ``visible``, the bridge sees the job's files."""
    if "script" in job.spec:
        return runnable(job.spec["script"])
    source = job.spec["scriptFrom"]
    if "path" in source and not visible:  # the script is on another cluster: call it there
        return f'#!/bin/sh\nexec {shlex.quote(plain("scriptFrom.path", source["path"]))} "$@"\n'
    try:
        if "configMap" in source:
            return runnable(key_of(api, job, "configMap", source["configMap"]).decode())
        if "s3" in source:
            store = s3_of(api, job, policy, source["s3"])
            return runnable(store.read(source["s3"]["key"], MAX_SCRIPT_SIZE).decode())
        return runnable(files.read_path(files.absolute_path(source["path"]), MAX_SCRIPT_SIZE).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise StagingError(f"script {source.get('path', '')}: {printable(str(error), 300)}") from error


def runnable(text: str) -> str:
    """Add an interpreter line if there is none: sbatch refuses scripts without. Bridge's and WLM's samples have one."""
    return text if text.startswith("#!") else f"#!/bin/sh\n{text}"


def environment_of(api: Api, job: SlurmJob) -> dict[str, str]:
    """The variables, as for a container: first envFrom, then env.

    Keys of envFrom that are not valid names of variables are left out, as in Kubernetes.
    """
    found: dict[str, str] = {}
    for entry in job.spec.get("envFrom", ()):
        for field, plural in (("configMapRef", "configMap"), ("secretRef", "secret")):
            if reference := entry.get(field):
                all_keys = {f"{entry.get('prefix', '')}{k}": v for k, v in all_of(api, job, plural, reference).items()}
                found |= {name: value for name, value in all_keys.items() if VARIABLE.fullmatch(name)}
    for entry in job.spec.get("env", ()):
        source, _ = entry.get("valueFrom"), variable_name(entry["name"])
        if not source:
            found[entry["name"]] = entry.get("value", "")
            continue
        field, kind = ("configMapKeyRef", "configMap") if "configMapKeyRef" in source else ("secretKeyRef", "secret")
        try:
            found[entry["name"]] = key_of(api, job, kind, source[field]).decode()
        except UnicodeDecodeError as error:
            raise StagingError(f"variable {entry['name']}: its value is no text") from error
        except MissingError:
            if not source[field].get("optional"):
                raise
    return found


def all_of(api: Api, job: SlurmJob, kind: str, reference: Object) -> dict[str, str]:
    try:
        if kind == "secret":
            return secret_data(api, job.namespace, reference["name"])
        return data_of(api, job.namespace, PLURALS[kind], reference["name"])
    except MissingError:
        if reference.get("optional"):
            return {}
        raise


def key_of(api: Api, job: SlurmJob, kind: str, reference: Object) -> bytes:
    data = data_of(api, job.namespace, PLURALS[kind], reference["name"])
    if reference["key"] not in data:
        raise MissingError(f"{PLURALS[kind].removesuffix('s')} {reference['name']} has no key {reference['key']}")
    value = data[reference["key"]]
    return base64.b64decode(value) if kind == "secret" else value.encode()


def s3_of(api: Api, job: SlurmJob, policy: Policy, place: dict[str, Any]) -> S3:
    endpoint = policy.s3_at(place["endpoint"], secure=place.get("secure", True))
    return S3(endpoint, place, secret_data(api, job.namespace, place["secret"]))


def check_size(script: str, environment: dict[str, str], arguments: tuple[str, ...]) -> None:
    """Check that Slurm accepts a job of this size: the variables may come from whole ConfigMaps."""
    texts = [script, *arguments, *environment, *environment.values()]
    if (size := sum(len(text) for text in texts)) > MAX_JOB_SIZE:
        raise StagingError(
            f"script, arguments and variables have {size >> 10} KiB, and Slurm takes {MAX_JOB_SIZE >> 10}"
        )


def directory_in(directory: Path, name: str) -> str:
    """Make a directory below the job's, for a copy pod. Returns its path."""
    try:
        with Tree(directory) as tree:
            tree.make_directory(name)
            return str(directory.joinpath(*tree.resolve(name)))
    except OSError as error:
        raise StagingError(f"input {printable(name, 200)}: {printable(str(error), 300)}") from error


def stage(api: Api, job: SlurmJob, policy: Policy, directory: Path) -> None:
    """Copy the inputs into the job's directory, except those on volumes, which a pod copies."""
    budget = CopyBudget()
    with Tree(directory) as tree:
        for entry in job.spec.get("inputs", ()):
            if "volume" in entry:
                continue
            try:
                if "s3" in entry:
                    store = s3_of(api, job, policy, entry["s3"])
                    tree.write(entry["to"], partial(store.download, entry["s3"]["key"]))
                elif "from" in entry:
                    files.copy_from_path(files.absolute_path(entry["from"]), tree, entry["to"], budget)
                else:
                    content = content_of(api, job, entry)
                    tree.write(entry["to"], lambda file, content=content: file.write(content))  # type: ignore[misc]
            except OSError as error:
                raise StagingError(f"input {entry['to']}: {printable(str(error), 300)}") from error


def content_of(api: Api, job: SlurmJob, entry: dict[str, Any]) -> bytes:
    """The content of an input that is inline, or in a ConfigMap or Secret."""
    kind = next(kind for kind in ("text", *PLURALS) if kind in entry)
    return entry["text"].encode() if kind == "text" else key_of(api, job, kind, entry[kind])


def wrap_with_transfers(api: Api, job: SlurmJob, policy: Policy, script: str) -> str:
    """A script that transfers its inputs and results itself, because the bridge does not see the job's files."""
    inputs, results = job.spec.get("inputs", ()), job.spec.get("results", ())
    if any("volume" in entry for entry in (*inputs, *results)):
        raise StagingError("this bridge does not see the files of that cluster, so volumes cannot be used")
    before, after = [], []
    for entry in inputs:
        if "s3" in entry:
            url = s3_of(api, job, policy, entry["s3"]).presigned_get_url(entry["s3"]["key"])
            before.append(wrapping.fetch(entry["to"], url))
        elif "from" in entry:
            before.append(wrapping.bring(entry["to"], entry["from"]))
        else:
            before.append(wrapping.put(entry["to"], content_of(api, job, entry)))
    for entry in results:
        if "s3" in entry:
            url = s3_of(api, job, policy, entry["s3"]).presigned_put_url(key_of_result(entry))
            after.append(wrapping.store(entry["from"], url))
        else:
            after.append(wrapping.keep(entry["from"], entry["directory"]))
    return wrapping.wrapped(script, before=before, after=after) if before or after else script


def key_of_result(entry: dict[str, Any]) -> str:
    """The S3 key of a result. A pattern is refused: its matches are not known before the job has run."""
    if set("*?[") & set(entry["from"]):
        raise StagingError(
            f"result {entry['from']}: a bridge that does not see the job's files takes no patterns to S3"
        )
    return "/".join(filter(None, (entry["s3"].get("prefix", "").strip("/"), entry["from"])))


def check_uploaded(api: Api, job: SlurmJob, policy: Policy) -> None:
    """Check that the job has uploaded its results to S3."""
    for entry in job.spec.get("results", ()):
        if "s3" not in entry:
            continue
        key, begun = key_of_result(entry), seconds_of(job.status["submitTime"])
        try:
            fresh = s3_of(api, job, policy, entry["s3"]).last_modified(key) > begun - MAX_CLOCK_SKEW
        except S3TransientError:
            raise
        except S3Error as error:
            raise StagingError(f"{error.message}; the job's output may say why") from error
        if not fresh:
            raise StagingError(f"result {entry['from']} in S3 is older than the job, whose output may say why")


def matches(directory: Path, pattern: str) -> list[str]:
    """The results that match a pattern; at least one, and none that leads out of the directory."""
    try:
        with Tree(directory) as tree:
            found = tree.matches(pattern, CopyBudget())
            for name in found:
                tree.resolve(name)
    except OSError as error:
        raise StagingError(f"result {printable(pattern, 200)}: {printable(str(error), 300)}") from error
    return found


def collect(api: Api, job: SlurmJob, policy: Policy, directory: Path) -> None:
    """Copy the results to their destinations, except volumes, to which a pod copies."""
    budget = CopyBudget()
    for entry in job.spec.get("results", ()):
        try:
            with Tree(directory) as tree:
                names = tree.matches(entry["from"], budget)
                if "directory" in entry:
                    with Tree(files.absolute_path(entry["directory"]), make=True) as target:
                        for name in names:
                            files.copy(tree, name, target, name, budget)
                elif "s3" in entry:
                    for name in names:
                        store_all(partial(s3_of, api, job, policy, entry["s3"]), tree, name, entry["s3"], budget)
        except OSError as error:
            raise StagingError(f"result {entry['from']}: {printable(str(error), 300)}") from error


def store_all(s3: Callable[[], S3], tree: Tree, name: str, place: dict[str, Any], budget: CopyBudget) -> None:
    """Upload a file, or all files of a directory. Links to files inside are followed; links out are an error."""
    prefix = place.get("prefix", "").strip("/")
    for path, about in tree.walk(name, budget):
        if stat.S_ISDIR(about.st_mode) or (stat.S_ISLNK(about.st_mode) and tree.is_directory(path)):
            continue
        with tree.read(path) as file:
            key = "/".join(filter(None, (prefix, path)))
            s3().upload(file, os.fstat(file.fileno()).st_size, key)
