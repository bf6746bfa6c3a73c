"""Bridge Operator's BridgeJob as a SlurmJob, and the SlurmJob's status in BridgeJob's words: pure functions.

Bridge Operator kept a job's parameters and progress in the ConfigMap ``<name>-bridge-cm``; scripts read it, so it is
there too.
"""

from __future__ import annotations

import json
import posixpath
from typing import TYPE_CHECKING, Any

from pinnace.errors import UsageError
from pinnace.slurm.scripts import directives
from pinnace.slurm.states import JobState

if TYPE_CHECKING:
    from pinnace.bridge.slurmjob import Job, Object

# What jobproperties calls sbatch's options.
PROPERTIES = {
    "NodesNumber": "nodes",
    "Queue": "partition",
    "Tasks": "tasks",
    "slurmJobName": "jobName",
    "currentWorkingDir": "workingDirectory",
    "OutputFileName": "output",
    "ErrorFileName": "error",
}
VARIABLES = {"envPath": "PATH", "envLibPath": "LD_LIBRARY_PATH"}
NUMBERS = {"Tasks"}
SUSPENDED = {"SUSPENDED", "STOPPED"}


def child_name(name: str) -> str:
    return f"{name}-bridge"


def config_map_name(name: str) -> str:
    return f"{name}-bridge-cm"


def spec_of(body: Object) -> Object:
    """The spec of the SlurmJob that a BridgeJob means."""
    spec, name = body["spec"], body["metadata"]["name"]
    given, data = properties(spec), spec["jobdata"]
    options: Object = {
        field: int(given[word]) if word in NUMBERS else given[word]
        for word, field in PROPERTIES.items()
        if given.get(word)
    }
    if limit := int(given.get("RunLimitHour") or 0) * 60 + int(given.get("RunLimitMinute") or 0):
        options["time"] = limit
    inline = data.get("scriptlocation") == "inline"
    said = directives(data["jobscript"]) if inline else {}
    if "s3upload" in spec and "output" not in said:
        options.setdefault("output", f"{name}.out")
    child: Object = {
        "cluster": {"secret": spec["resourcesecret"], "url": spec["resourceURL"]},
        **script(spec),
        "options": options,
        "env": [{"name": VARIABLES[word], "value": given[word]} for word in VARIABLES if given.get(word)],
        "inputs": inputs(spec),
        "updateIntervalSeconds": max(1, int(spec.get("updateinterval") or 20)),
    }
    if "s3upload" in spec:
        output = options.get("output") or said.get("output") or ""
        child["results"] = results(spec, name, [output, options.get("error") or said.get("error") or ""])
    if spec.get("kill"):
        child["cancel"] = True
    return child


def properties(spec: Object) -> dict[str, str]:
    """jobproperties; some samples have the same in jobparameters."""
    found: dict[str, str] = {}
    for text in (spec["jobdata"].get("jobparameters"), spec.get("jobproperties")):
        if not text or (text is spec["jobdata"].get("jobparameters") and parameters_in_s3(spec)):
            continue
        try:
            document = json.loads(text)
        except ValueError as error:
            raise UsageError(f"jobproperties are no JSON: {error}") from error
        found |= {str(key): str(value) for key, value in document.items()}
    return found


def parameters_in_s3(spec: Object) -> bool:
    return bool(spec["jobdata"].get("scriptextralocation") == "s3")


def script(spec: Object) -> Object:
    data = spec["jobdata"]
    match data.get("scriptlocation", "remote"):
        case "inline":
            return {"script": data["jobscript"]}
        case "s3":
            return {"scriptFrom": {"s3": s3_object(spec, data["jobscript"])}}
    return {"scriptFrom": {"path": data["jobscript"]}}


def s3_place(spec: Object) -> dict[str, Any]:
    storage = spec.get("s3storage") or {}
    if not storage.get("s3secret") or not storage.get("endpoint"):
        raise UsageError("S3 is used, and s3storage says neither s3secret nor endpoint")
    return {"endpoint": storage["endpoint"], "secure": storage.get("secure", True), "secret": storage["s3secret"]}


def s3_object(spec: Object, text: str) -> dict[str, Any]:
    """``bucket:object``."""
    bucket, colon, key = text.strip().partition(":")
    if not colon or not key:
        raise UsageError(f"{text!r} is no bucket:object")
    return {**s3_place(spec), "bucket": bucket, "key": key}


def inputs(spec: Object) -> list[Object]:
    """Additional data, and the script's extras if they are in S3: files in the job's directory."""
    data = spec["jobdata"]
    words = [word for word in (data.get("additionaldata") or "").split(",") if word.strip()]
    if parameters_in_s3(spec):
        words += [data[word] for word in ("scriptmetadata", "jobparameters") if data.get(word)]
    places = [s3_object(spec, word) for word in words]
    return [{"to": posixpath.basename(place["key"]), "s3": place} for place in places]


def results(spec: Object, name: str, output: list[str]) -> list[Object]:
    """What is uploaded: the output, the errors, and what the user names, each as ``<job>/<file>``."""
    upload = spec["s3upload"]
    place = {**s3_place(spec), "bucket": upload["bucket"], "prefix": name}
    files = [word.strip() for word in (upload.get("files") or "").split(",")]
    return [{"from": file, "s3": place} for file in dict.fromkeys([*output, *files]) if file]


def job_status(child: Job) -> str:
    """In BridgeJob's words."""
    state = child.status.get("state", "")
    if child.finished:
        if child.succeeded:
            return "DONE"
        return "KILLED" if state == JobState.CANCELLED else "UNKNOWN" if state == "" else "FAILED"
    if state in SUSPENDED:
        return "SUSPENDED"
    started = "startTime" in child.status
    return "RUNNING" if started else "PENDING"


def status_of(child: Job) -> Object:
    status = child.status
    return {
        "jobstatus": job_status(child),
        "starttime": status.get("startTime") or status.get("submitTime"),
        "completiontime": status.get("endTime") or status.get("completionTime"),
        "message": message(child) if child.finished else status.get("message"),
    }


def message(child: Job) -> str:
    """What happened, and where the output is."""
    conditions = child.status.get("conditions", ())
    said = next((c["message"] for c in conditions if c["type"] == "Failed" and c["message"]), "")
    where = f"output in {child.status['stdout']}" if "stdout" in child.status else ""
    return "; ".join(filter(None, (said or child.status.get("reason", ""), where)))


def config_data(body: Object, child: Job | None) -> dict[str, str]:
    """The content of the ConfigMap."""
    spec = body["spec"]
    data, storage, upload = spec["jobdata"], spec.get("s3storage") or {}, spec.get("s3upload") or {}
    found = {
        "updateInterval": str(spec.get("updateinterval", 20)),
        "resourceURL": spec["resourceURL"],
        "resourcesecret": spec["resourcesecret"],
        "jobproperties": spec.get("jobproperties", ""),
        "jobdata.jobScript": data["jobscript"],
        "jobdata.scriptLocation": data.get("scriptlocation", "remote"),
        "jobdata.scriptMetadata": data.get("scriptmetadata", ""),
        "jobdata.jobParameters": data.get("jobparameters", ""),
        "jobdata.scriptExtraLocation": data.get("scriptextralocation", "inline"),
        "jobdata.additionalData": data.get("additionaldata", ""),
    }
    if storage.get("s3secret"):
        secure = str(storage.get("secure", True)).lower()
        found |= {"s3.secret": storage["s3secret"], "s3.endpoint": storage.get("endpoint", ""), "s3.secure": secure}
    if upload:
        found |= {"s3upload.bucket": upload["bucket"], "s3upload.files": upload.get("files", "")}
    if spec.get("kill"):
        found["kill"] = "true"
    if child:
        status = child.status
        progress = {
            "id": str(child.id or ""),
            "jobStatus": str(status.get("state", "")),
            "submitTime": status.get("submitTime"),
            "startTime": status.get("startTime"),
            "endTime": status.get("endTime"),
            "message": status_of(child)["message"],
        }
        found |= {key: value or "" for key, value in progress.items()}
        found |= {"status.jobStatus": job_status(child)}
    return found
