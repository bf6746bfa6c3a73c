"""The typed fields of a SlurmJob's ``options``: which option of sbatch's each is, and what it takes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pinnace.slurm.options import SbatchOptions


class FieldType(StrEnum):
    """What a field takes."""

    TEXT = "text"
    COUNT = "count"
    TEXT_OR_COUNT = "text or count"
    FLAG = "flag"
    YES_OR_NO = "yes or no"


@dataclass(frozen=True, kw_only=True)
class OptionField:
    """A field, and the long name of its option."""

    field: str
    option: str
    type: FieldType = FieldType.TEXT


def _field(field: str, option: str, type_: FieldType = FieldType.TEXT) -> OptionField:
    return OptionField(field=field, option=option, type=type_)


FIELDS = (
    _field("jobName", "job-name"),
    _field("partition", "partition"),
    _field("account", "account"),
    _field("qos", "qos"),
    _field("nodes", "nodes", FieldType.TEXT_OR_COUNT),
    _field("tasks", "ntasks", FieldType.COUNT),
    _field("tasksPerNode", "ntasks-per-node", FieldType.COUNT),
    _field("cpusPerTask", "cpus-per-task", FieldType.COUNT),
    _field("memory", "mem", FieldType.TEXT_OR_COUNT),
    _field("memoryPerCPU", "mem-per-cpu", FieldType.TEXT_OR_COUNT),
    _field("time", "time", FieldType.TEXT_OR_COUNT),
    _field("gres", "gres"),
    _field("gpus", "gpus"),
    _field("constraint", "constraint"),
    _field("nodeList", "nodelist"),
    _field("exclude", "exclude"),
    _field("exclusive", "exclusive", FieldType.FLAG),
    _field("reservation", "reservation"),
    _field("licenses", "licenses"),
    _field("array", "array"),
    _field("begin", "begin"),
    _field("deadline", "deadline"),
    _field("dependency", "dependency"),
    _field("killOnInvalidDependency", "kill-on-invalid-dep", FieldType.YES_OR_NO),
    _field("nice", "nice", FieldType.COUNT),
    _field("signal", "signal"),
    _field("output", "output"),
    _field("error", "error"),
    _field("input", "input"),
    _field("openMode", "open-mode"),
    _field("mailType", "mail-type"),
    _field("mailUser", "mail-user"),
    _field("comment", "comment"),
    _field("wckey", "wckey"),
    _field("workingDirectory", "chdir"),
    _field("requeue", "requeue", FieldType.FLAG),
    _field("hold", "hold", FieldType.FLAG),
)
_OPTIONS = {field.field: field.option for field in FIELDS}


def from_fields(fields: Mapping[str, Any]) -> SbatchOptions:
    """The options that these fields mean."""
    given: SbatchOptions = {}
    for field, value in fields.items():
        if value is True:
            given[_OPTIONS[field]] = None
        elif value is not False:
            given[_OPTIONS[field]] = str(value)
    return given
