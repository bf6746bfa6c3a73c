"""The custom resources, as data: our SlurmJob, and the predecessors' kinds with the fields that they had."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pinnace.bridge.options import FIELDS, FieldType
from pinnace.validation import api_name

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BRIDGEJOB", "KINDS", "SLURMJOB", "WLM_SLURMJOB", "WLM_WLMJOB", "Resource", "definitions"]


Schema = dict[str, Any]

NAME = {"type": "string", "minLength": 1, "maxLength": 253}
OBJECT = NAME | {"pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"}
KEY = NAME | {"pattern": "^[-._a-zA-Z0-9]+$"}
VARIABLE = NAME | {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}
TEXT: Schema = {"type": "string", "maxLength": 4096}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "format": "int64"}
WORD: Schema = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
ANYTHING: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
TIME: Schema = {"type": "string", "format": "date-time"}
MUTABLE = ("suspend", "cancel", "ttlSecondsAfterFinished", "logs", "updateIntervalSeconds")
LONGEST_TTL = (1 << 31) - 1  # seconds, as for a Job of Kubernetes
LONGEST_INTERVAL = 3600  # seconds
INSIDE = "!self.startsWith('/') && !self.split('/').exists(part, part == '..')"
ESCAPES = "must be a path below the directory or volume, without '..'"


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A kind and where the API has it."""

    group: str
    kind: str
    plural: str
    version: str = "v1alpha1"

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}"

    @property
    def name(self) -> str:
        return f"{self.plural}.{self.group}"

    def path(self, namespace: str = "", name: str = "", part: str = "") -> str:
        where = f"/apis/{self.api_version}" + (f"/namespaces/{api_name(namespace)}" if namespace else "")
        return "/".join([f"{where}/{self.plural}", *(api_name(word) for word in (name, part) if word)])


SLURMJOB = Resource(group="pinnace.dev", kind="SlurmJob", plural="slurmjobs")
BRIDGEJOB = Resource(group="bridgejob.ibm.com", kind="BridgeJob", plural="bridgejobs")
WLM_SLURMJOB = Resource(group="wlm.sylabs.io", kind="SlurmJob", plural="slurmjobs")
WLM_WLMJOB = Resource(group="wlm.sylabs.io", kind="WlmJob", plural="wlmjobs")
KINDS = (SLURMJOB, BRIDGEJOB, WLM_SLURMJOB, WLM_WLMJOB)


def record(properties: dict[str, Any], *, required: tuple[str, ...] = (), rules: Sequence[Schema] = ()) -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = list(required)
    if rules:
        schema["x-kubernetes-validations"] = list(rules)
    return schema


def several(items: Schema, *, most: int) -> Schema:
    return {"type": "array", "items": items, "maxItems": most}


def rule(text: str, message: str) -> Schema:
    return {"rule": text, "message": message}


def exactly_one(*fields: str) -> list[Schema]:
    count = " + ".join(f"(has(self.{field}) ? 1 : 0)" for field in fields)
    return [rule(f"{count} == 1", f"say exactly one of {', '.join(fields)}")]


def key_of(*, optional: bool = False) -> Schema:
    """A key of a ConfigMap or a Secret."""
    fields: dict[str, Schema] = {"name": OBJECT, "key": KEY}
    return record(fields | ({"optional": FLAG} if optional else {}), required=("name", "key"))


def s3(**more: Schema) -> Schema:
    """A place in S3. The Secret has ``accesskey`` and ``secretkey``."""
    fields: dict[str, Schema] = {"endpoint": NAME, "secure": FLAG | {"default": True}, "secret": OBJECT, "bucket": NAME}
    return record(fields | more, required=("endpoint", "secret", "bucket", *(("key",) if "key" in more else ())))


def option_schema(kind: FieldType) -> Schema:
    match kind:
        case FieldType.FLAG:
            return FLAG
        case FieldType.COUNT:
            return COUNT
        case FieldType.YES_OR_NO:
            return {"type": "string", "enum": ["yes", "no"]}
        case FieldType.TEXT:
            return TEXT
    return WORD


def slurmjob_spec() -> Schema:
    inside = TEXT | {"minLength": 1, "x-kubernetes-validations": [rule(INSIDE, ESCAPES)]}
    volume = {
        "volume": ANYTHING | {"description": "The source of a pod's volume; those that the bridge allows."},
        "path": inside,
    }
    source = record(
        {"configMap": key_of(), "path": TEXT, "s3": s3(key=TEXT)},
        rules=exactly_one("configMap", "path", "s3"),
    )
    variable = record(
        {
            "name": VARIABLE,
            "value": {"type": "string", "maxLength": 65536},
            "valueFrom": record(
                {"configMapKeyRef": key_of(optional=True), "secretKeyRef": key_of(optional=True)},
                rules=exactly_one("configMapKeyRef", "secretKeyRef"),
            ),
        },
        required=("name",),
    )
    all_of = record({"name": OBJECT, "optional": FLAG}, required=("name",))
    variables = record({"prefix": TEXT, "configMapRef": all_of, "secretRef": all_of})
    text = {"type": "string", "maxLength": 262144}
    put = {"to": inside, "text": text, "configMap": key_of(), "secret": key_of(), "s3": s3(key=TEXT)}
    from_volume = {**volume, "from": TEXT}
    sources = exactly_one("text", "configMap", "secret", "s3", "from", "volume")
    sinks = exactly_one("directory", "volume", "s3")
    result = {"from": inside, "directory": TEXT, "s3": s3(prefix=TEXT), **volume}
    typed = {field.field: option_schema(field.type) for field in FIELDS}
    dependency = {"name": OBJECT, "type": {"type": "string", "enum": ["afterok", "afterany", "afternotok"],
                                         "default": "afterok"}}  # fmt: skip
    fields: dict[str, Schema] = {
        "cluster": record({"secret": OBJECT, "url": NAME}, required=("secret",)),
        "script": text,
        "scriptFrom": source,
        "arguments": several(TEXT, most=256),
        "options": record(typed),
        "flags": several(TEXT, most=64),
        "env": several(variable, most=256),
        "envFrom": several(variables, most=32),
        "dependsOn": several(record(dependency, required=("name",)), most=64),
        "inputs": several(record(put | from_volume, required=("to",), rules=sources), most=64),
        "results": several(record(result, required=("from",), rules=sinks), most=64),
        "retries": {"type": "integer", "minimum": 0, "maximum": 100},
        "suspend": FLAG,
        "cancel": FLAG | {"x-kubernetes-validations": [rule("self || !oldSelf", "what was cancelled stays so")]},
        "ttlSecondsAfterFinished": {"type": "integer", "minimum": 0, "maximum": LONGEST_TTL},
        "logs": FLAG | {"default": True},
        "updateIntervalSeconds": {"type": "integer", "minimum": 1, "maximum": LONGEST_INTERVAL},
    }
    fixed = [field for field in fields if field not in MUTABLE]
    same = " && ".join(f"has(self.{field}) == has(oldSelf.{field})" for field in fixed)
    said = "a job cannot be changed once it exists: delete it and make another"
    for field in fixed:
        rules = fields[field].get("x-kubernetes-validations", [])
        fields[field] = fields[field] | {"x-kubernetes-validations": [*rules, rule("self == oldSelf", said)]}
    return record(fields, rules=[*exactly_one("script", "scriptFrom"), rule(same, said)])


def slurmjob_status() -> Schema:
    condition = record(dict.fromkeys(("type", "status", "reason", "lastTransitionTime"), TEXT) | {"message": TEXT})
    tasks = record(dict.fromkeys(("pending", "running", "succeeded", "failed"), COUNT))
    usage = record({"elapsedSeconds": COUNT, "cpuSeconds": {"type": "number"}, "maxRSSBytes": COUNT, "tres": TEXT})
    texts = ("state", "reason", "nodes", "exit", "user", "workingDirectory", "stdout", "stderr", "message")
    return record(
        dict.fromkeys(texts, TEXT)
        | dict.fromkeys(("jobID", "attempt", "nodeCount", "exitCode", "signal"), COUNT)
        | dict.fromkeys(("submitTime", "expectedStart", "startTime", "endTime", "completionTime"), TIME)
        | {"held": FLAG, "tasks": tasks, "usage": usage, "conditions": several(condition, most=16)}
    )


def definition(
    resource: Resource,
    spec: Schema,
    status: Schema,
    *,
    short: tuple[str, ...],
    columns: tuple[tuple[str, str, str], ...],
) -> Schema:
    shown = [{"name": name, "type": kind, "jsonPath": path} for name, kind, path in columns]
    age = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
    version = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": record({"spec": spec, "status": status}, required=("spec",))},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [*shown, age],
    }
    names = {"kind": resource.kind, "plural": resource.plural, "singular": resource.kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": resource.name},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced",
            "names": {**names, "listKind": f"{resource.kind}List", "shortNames": list(short)},
            "versions": [version],
        },
    }


def slurmjob() -> Schema:
    columns = (
        ("State", "string", ".status.state"),
        ("JobID", "integer", ".status.jobID"),
        ("Nodes", "string", ".status.nodes"),
        ("Exit", "string", ".status.exit"),
    )
    return definition(SLURMJOB, slurmjob_spec(), slurmjob_status(), short=("slj", "sjob"), columns=columns)


def bridgejob() -> Schema:
    job = record(
        {name: {"type": "string"} for name in ("jobscript", "scriptmetadata", "jobparameters", "additionaldata")}
        | {"scriptlocation": {"type": "string", "default": "remote", "enum": ["remote", "inline", "s3"]}}
        | {"scriptextralocation": {"type": "string", "default": "inline", "enum": ["inline", "s3"]}},
        required=("jobscript",),
    )
    storage = record(
        {"s3secret": {"type": "string"}, "endpoint": {"type": "string"}, "secure": FLAG | {"default": True}}
    )
    upload = record({"bucket": {"type": "string"}, "files": {"type": "string"}}, required=("bucket",))
    spec = record(
        {name: {"type": "string"} for name in ("resourceURL", "resourcesecret", "image", "jobproperties")}
        | {"imagepullpolicy": {"type": "string", "default": "IfNotPresent"}}
        | {"updateinterval": {"type": "integer", "default": 20, "maximum": LONGEST_INTERVAL}, "kill": FLAG}
        | {"jobdata": job, "s3storage": storage, "s3upload": upload},
        required=("resourceURL", "resourcesecret", "jobdata"),
    )
    status = record({name: {"type": "string"} for name in ("jobstatus", "starttime", "completiontime", "message")})
    columns = (("Status", "string", ".status.jobstatus"), ("Message", "string", ".status.message"))
    return definition(BRIDGEJOB, spec, status, short=(), columns=columns)


def wlm_results() -> Schema:
    return record({"from": {"type": "string"}, "mount": ANYTHING}, required=("from", "mount"))


WLM_STATUS = record({"status": {"type": "string"}})
WLM_COLUMNS = (("Status", "string", ".status.status"),)
SELECTOR = {"type": "object", "additionalProperties": WORD}


def wlm_slurmjob() -> Schema:
    fields = {"batch": {"type": "string", "minLength": 1}, "nodeSelector": SELECTOR, "results": wlm_results()}
    spec = record(fields, required=("batch",))
    return definition(WLM_SLURMJOB, spec, WLM_STATUS, short=("sj",), columns=WLM_COLUMNS)


def wlm_wlmjob() -> Schema:
    switches = ("allowUnsigned", "cleanEnv", "fakeRoot", "ipc", "noPrivs", "pid", "writable")
    options = record(
        dict.fromkeys(switches, FLAG)
        | {name: {"type": "string"} for name in ("app", "hostName")}
        | {"binds": {"type": "array", "items": {"type": "string"}}}
    )
    resources = record(dict.fromkeys(("nodes", "cpuPerNode", "memPerNode", "wallTime"), COUNT))
    fields = {"image": {"type": "string"}, "options": options, "resources": resources,
              "nodeSelector": SELECTOR, "results": wlm_results()}  # fmt: skip
    spec = record(fields, required=("image",))
    return definition(WLM_WLMJOB, spec, WLM_STATUS, short=("wj",), columns=WLM_COLUMNS)


def definitions() -> list[Schema]:
    """What `pinnace bridge` installs."""
    return [slurmjob(), bridgejob(), wlm_slurmjob(), wlm_wlmjob()]
