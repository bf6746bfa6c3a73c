"""What slurmrestd answers about jobs and partitions, in the forms of all its versions: pure functions.

From 0.0.39 on, numbers may be objects that say whether they are set, and states are lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinnace.slurm.jobs import AccountedJob, QueuedJob
from pinnace.slurm.partitions import Partition
from pinnace.slurm.states import JobState

if TYPE_CHECKING:
    from collections.abc import Iterator


def number(value: Any) -> int:
    """A number in either form; 0 if it is not set."""
    if isinstance(value, dict):
        return int(value.get("number") or 0) if value.get("set", True) else 0
    return int(value or 0)


def state(value: Any) -> JobState:
    """A state in either form; the flags that follow it in a list are looked at only where they are known."""
    words = value if isinstance(value, list) else [value]
    flags = [word for word in words if word in {"COMPLETING", "CONFIGURING", "STOPPED"}]
    return JobState.parse((flags or words)[0])


def status_of(value: Any) -> int:
    """A status as wait(2) has it. New versions take it apart."""
    if isinstance(value, dict) and "return_code" in value:
        signal = value.get("signal") or {}
        return number(value["return_code"]) << 8 | number(signal.get("signal_id") or signal.get("id"))
    return number(value)


def parse_job(job: dict[str, Any]) -> QueuedJob:
    task = job.get("array_task_string") or job.get("array_task_id")
    task = task["number"] if isinstance(task, dict) and task.get("set") else ("" if isinstance(task, dict) else task)
    array = number(job.get("array_job_id"))
    return QueuedJob(
        id=array or int(job["job_id"]),
        task="" if not array or task is None else f"[{task}]" if job.get("array_task_string") else str(task),
        name=job.get("name") or "",
        comment=job.get("comment") or "",
        user=job.get("user_name") or "",
        state=state(job["job_state"]),
        reason=job.get("state_reason") or "",
        submitted=number(job.get("submit_time")),
        start=number(job.get("start_time")),
        end=number(job.get("end_time")),
        nodes=job.get("nodes") or "",
        node_count=number(job.get("node_count")),
        status=status_of(job.get("exit_code")),
    )


def parse_accounted(jobs: list[dict[str, Any]], wanted: int) -> tuple[AccountedJob, ...]:
    """What slurmdbd knows of a job, with all tasks of an array."""
    mine = [job for job in jobs if wanted in {int(job["job_id"]), number(job["array"].get("job_id"))}]
    return tuple(_accounted(job, wanted) for job in mine)


def _accounted(job: dict[str, Any], wanted: int) -> AccountedJob:
    times, total = job["time"], job["time"].get("total") or {}
    return AccountedJob(
        id=wanted,
        task=str(number(job["array"].get("task_id"))) if number(job["array"].get("job_id")) else "",
        name=job.get("name") or "",
        comment=(job.get("comment") or {}).get("job") or "",
        state=state(job["state"]["current"]),
        submitted=number(times["submission"]),
        start=number(times.get("start")),
        end=number(times.get("end")),
        nodes="" if job.get("nodes") == "None assigned" else job.get("nodes") or "",
        node_count=number(job.get("allocation_nodes")),
        status=status_of(job.get("exit_code")),
        elapsed=number(times.get("elapsed")),
        cpu=total.get("seconds", 0) + total.get("microseconds", 0) / 1e6,
        memory=max(_resident(job), default=0),
        tres=",".join(tres_word(entry) for entry in job.get("tres", {}).get("allocated") or ()),
    )


def _resident(job: dict[str, Any]) -> Iterator[int]:
    """Bytes of the largest task of each step."""
    for step in job.get("steps") or ():
        for entry in step.get("tres", {}).get("requested", {}).get("max") or ():
            if entry["type"] == "mem":
                yield number(entry["count"])


def tres_word(entry: dict[str, Any]) -> str:
    """``gres/gpu=2``, as Slurm's commands have it."""
    kind = f"{entry['type']}/{entry['name']}" if entry.get("name") else entry["type"]
    return f"{kind}={entry['count']}"


def parse_partitions(partitions: list[dict[str, Any]], nodes: dict[str, dict[str, Any]]) -> list[Partition]:
    found = []
    for partition in partitions:
        name = partition["name"]
        mine = [node for node in nodes.values() if name in (node.get("partitions") or ())]
        features = {feature for node in mine for feature in feature_list(node)}
        about, most = partition.get("partition") or partition, partition.get("maximums") or {}
        limit = number(most.get("time") or partition.get("max_time_limit"))
        total = (partition.get("nodes") or {}).get("total") if most else partition.get("total_nodes")
        found.append(
            Partition(
                name=name,
                nodes=len(mine) or number(total),
                cpus=min((number(node.get("cpus")) for node in mine), default=0),
                memory=min((number(node.get("real_memory")) for node in mine), default=0),
                minutes=limit or None,
                features=tuple(sorted(features)),
                up="UP" in str(about.get("state")),
            )
        )
    return found


def feature_list(node: dict[str, Any]) -> list[str]:
    features = node.get("active_features") or node.get("features") or ()
    return [feature for feature in features.split(",") if feature] if isinstance(features, str) else list(features)
