"""Slurm through slurmrestd, over HTTP(S) or its UNIX socket, as the user whose token we were given.

slurmrestd offers several versions of its interface at once and drops old ones with time: it is asked which it has, and
the newest that we know is used. From 0.0.39 on, numbers may be objects that say whether they are set, states are lists,
and the environment is a list.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any

from pinnace.bridge import options, wrapping
from pinnace.bridge.backend import Accounted, Partition, Report, UnreachableError, own_directory, tag_in, words_of
from pinnace.bridge.deadline import DeadlineSocket
from pinnace.errors import SlurmError
from pinnace.slurm.states import JobState, Phase
from pinnace.validation import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pinnace.bridge.backend import Submission
    from pinnace.bridge.policy import Endpoint

KNOWN = tuple(f"v0.0.{number}" for number in range(36, 45))
LISTED = "v0.0.39"  # the first version in which the environment is a list
LIMIT = 30.0  # seconds for an answer, from the connection to its last byte
LARGEST = 64 << 20  # bytes of an answer: that about the jobs of a whole site
GONE = ("invalid job id", "already complet", "no job", "not found")
PASSING = ("unable to contact", "timed out", "connection", "communication", "temporarily", "database", "protocol auth",
           "zero bytes")  # fmt: skip
UNSPECIFIED = "Unspecified error"
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin"}  # slurmrestd refuses a job that has none


class Rest:
    """The Slurm behind a slurmrestd."""

    def __init__(self, endpoint: Endpoint, user: str, token: str, *, directory: str = "", files: bool = False) -> None:
        self._endpoint, self.user, self._token, self._directory = endpoint, user, token, directory
        self.files = files
        self._version = ""
        self._silent = (0.0, "")  # until when it is not asked again, and why

    def directory(self) -> str:
        elsewhere = own_directory() if self.files else "/tmp"  # noqa: S108 - where slurmd would put it anyway
        return self._directory or elsewhere

    # --- the interface ------------------------------------------------------------------------------------------

    def submit(self, submission: Submission) -> int:
        job = properties(submission, self.version())
        script = submission.script
        if submission.arguments:  # slurmrestd has a field for them, of which that of 22.05 dies
            script = wrapping.wrapped(script, submission.arguments)
        answer = self._ask("POST", "slurm", "job/submit", {"script": script, "job": job})
        return int(number(answer.get("job_id")) or answer["result"]["job_id"])

    def jobs(self) -> list[Report]:
        answer = self._ask("GET", "slurm", "jobs")
        # slurmrestd does not know everybody's name: of jobs without one, only those are taken whose number we know.
        mine = (job for job in answer["jobs"] if job.get("user_name") in {self.user, "", None})
        return [parse_job(job) for job in mine if tag_in(job.get("comment") or "")]

    def accounted(self, jobs: Iterable[int]) -> dict[int, Accounted]:
        found = {}
        for job in jobs:
            with contextlib.suppress(SlurmNotFoundError):
                if about := parse_accounted(self._ask("GET", "slurmdb", f"job/{job}")["jobs"], job):
                    found[job] = about
        return found

    def recall(self, tag: str, name: str, since: int) -> int | None:
        """By its comment where accounting keeps these, else by its name: submitted in the minute after ``since``."""
        answer = self._ask("GET", "slurmdb", f"jobs?start_time=uts{since}")
        for job in answer["jobs"]:
            if job["association"]["user"] != self.user:
                continue
            comment = (job.get("comment") or {}).get("job") or ""
            close = job.get("name") == name and 0 <= number(job["time"]["submission"]) - since <= 2 * LIMIT
            # slurmctld, which does keep comments, has just been asked for jobs that have not ended.
            ended = state(job["state"]["current"]).phase is Phase.ENDED
            if tag_in(comment) == tag or (close and not comment and ended):
                return int(job["array"]["job_id"] or job["job_id"])
        return None

    def cancel(self, job: int) -> None:
        with contextlib.suppress(SlurmNotFoundError):
            self._ask("DELETE", "slurm", f"job/{job}")

    def hold(self, job: int, *, held: bool) -> None:
        self._ask("POST", "slurm", f"job/{job}", {"hold": held})

    def stop(self, job: int, *, stopped: bool) -> None:
        self._ask("DELETE", "slurm", f"job/{job}?signal={'STOP' if stopped else 'CONT'}")

    def partitions(self) -> list[Partition]:
        nodes = {node["name"]: node for node in self._ask("GET", "slurm", "nodes")["nodes"]}
        return parse_partitions(self._ask("GET", "slurm", "partitions")["partitions"], nodes)

    # --- the wire -----------------------------------------------------------------------------------------------

    def version(self) -> str:
        """The newest version of the interface that both sides know."""
        if not self._version:
            paths = self._request("GET", "/openapi/v3").get("paths", ())
            offered = {path.split("/")[2] for path in paths if path.startswith("/slurm/")}
            common = [version for version in KNOWN if version in offered]
            if not common:
                offer = ", ".join(sorted(offered)) or "nothing"
                raise SlurmError(f"slurmrestd at {self._endpoint} offers {offer}, of which none is known here")
            self._version = common[-1]
        return self._version

    def _ask(self, method: str, part: str, what: str, body: object = None) -> dict[str, Any]:
        version = self.version()
        try:
            return self._request(method, f"/{part}/{version}/{what}", body)
        except UnreachableError:
            self._version = ""  # it may come back as another version
            raise

    def _request(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        self._check_token()
        begun = time.monotonic()
        if begun < self._silent[0]:
            raise UnreachableError(self._silent[1])
        headers = {
            "X-SLURM-USER-NAME": self.user,
            "X-SLURM-USER-TOKEN": self._token,
            "Content-Type": "application/json",
            "Accept": "application/json",
        }
        connection = self._connection()
        try:
            connection.request(method, self._prefix + path, None if body is None else json.dumps(body), headers)
            with contextlib.closing(connection.getresponse()) as response:
                status, data = response.status, response.read(LARGEST + 1)
        except (OSError, http.client.HTTPException) as error:
            message = f"slurmrestd at {self._endpoint}: {printable(str(error), 200) or type(error).__name__}"
            # One that hangs must not keep us from the others for long.
            clock = time.monotonic()
            self._silent = (clock + 2 * (clock - begun), message)
            raise UnreachableError(message) from error
        finally:
            connection.close()
        if len(data) > LARGEST:
            raise UnreachableError(f"slurmrestd at {self._endpoint} answers with more than {LARGEST >> 20} MiB")
        return self._judge(status, data)

    @property
    def _prefix(self) -> str:
        return "" if self._endpoint.scheme == "unix" else self._endpoint.path

    def _judge(self, status: int, data: bytes) -> dict[str, Any]:
        """What the answer says. Of one that is not slurmrestd's, nothing is shown: it may be somebody else's secret."""
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            answer = {}
        if not isinstance(answer, dict):
            raise SlurmError(f"{self._endpoint} does not answer like slurmrestd")
        listed = answer.get("errors")
        errors = listed[:10] if isinstance(listed, list) else []
        said = "; ".join(words_of(error) for error in errors)
        if status < 300 and not said:
            return dict(answer)
        if 300 <= status < 400:
            raise SlurmError(f"{self._endpoint} does not answer like slurmrestd: it sends us elsewhere ({status})")
        said = printable(said, 500) or http.client.responses.get(status, str(status))
        if status in {401, 403}:
            raise UnreachableError(f"slurmrestd does not accept the token of {self.user}: {said}")
        lowered = said.lower()
        if any(word in lowered for word in GONE):
            raise SlurmNotFoundError(said)
        # 22.05 has no better word than this for a token that slurmctld refuses: it may pass.
        unspecified = all(isinstance(error, dict) and error.get("error") == UNSPECIFIED for error in errors)
        if unspecified or any(word in lowered for word in PASSING) or status in {502, 503, 504}:
            raise UnreachableError(f"slurmrestd: {said}")
        raise SlurmError(f"slurmrestd: {said}")

    def _check_token(self) -> None:
        """slurmrestd's own words for a token that has expired do not help anybody."""
        if (end := expiry(self._token)) is not None and end < time.time():
            when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(end))
            raise UnreachableError(
                f"the token of {self.user} expired at {when}", hint="Put a new one into the Secret (`scontrol token`)."
            )

    def _connection(self) -> http.client.HTTPConnection:
        if self._endpoint.scheme == "unix":
            return _UnixConnection(self._endpoint.path)
        if self._endpoint.scheme == "https":
            context = ssl.create_default_context()
            return _TlsConnection(self._endpoint.netloc, timeout=LIMIT, context=context)
        return _PlainConnection(self._endpoint.netloc, timeout=LIMIT)


class SlurmNotFoundError(SlurmError):
    """There is no such job any more."""


class _PlainConnection(http.client.HTTPConnection):
    """All that is asked on one of these ends within the limit."""

    def connect(self) -> None:
        deadline = time.monotonic() + LIMIT
        super().connect()
        self.sock = DeadlineSocket(self.sock, deadline)


class _TlsConnection(http.client.HTTPSConnection):
    def connect(self) -> None:
        deadline = time.monotonic() + LIMIT
        super().connect()
        self.sock = DeadlineSocket(self.sock, deadline)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=LIMIT)
        self._path = path

    def connect(self) -> None:
        deadline = time.monotonic() + LIMIT
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(LIMIT)
        sock.connect(self._path)
        self.sock = DeadlineSocket(sock, deadline)


def expiry(token: str) -> float | None:
    """When a JWT ends, as it says itself; None if it does not."""
    with contextlib.suppress(ValueError, LookupError, TypeError, OverflowError, RecursionError):
        payload = token.split(".")[1]
        return max(0.0, float(json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"]))
    return None


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


def properties(submission: Submission, version: str) -> dict[str, Any]:
    """The ``job`` of a submission."""
    given = options.properties(submission.commented)
    environment = ENVIRONMENT | submission.environment
    given["environment"] = environment
    if version in KNOWN[KNOWN.index(LISTED) :]:
        given["environment"] = [f"{name}={value}" for name, value in environment.items()]
        for name in ("time_limit", "memory_per_node", "memory_per_cpu"):
            if name in given:
                given[name] = {"set": True, "number": given[name]}
        if "nodes" in given:
            given["nodes"] = submission.options["--nodes"]
    return given


def parse_job(job: dict[str, Any]) -> Report:
    task = job.get("array_task_string") or job.get("array_task_id")
    task = task["number"] if isinstance(task, dict) and task.get("set") else ("" if isinstance(task, dict) else task)
    array = number(job.get("array_job_id"))
    reason = job.get("state_reason") or ""
    return Report(
        id=array or int(job["job_id"]),
        task="" if not array or task is None else f"[{task}]" if job.get("array_task_string") else str(task),
        tag=tag_in(job.get("comment") or ""),
        user=job.get("user_name") or "",
        state=state(job["job_state"]),
        reason="" if reason == "None" else reason,
        submitted=number(job.get("submit_time")),
        start=number(job.get("start_time")),
        end=number(job.get("end_time")),
        nodes=job.get("nodes") or "",
        node_count=number(job.get("node_count")),
        status=status_of(job.get("exit_code")),
    )


def parse_accounted(jobs: list[dict[str, Any]], wanted: int) -> Accounted | None:
    """What slurmdbd knows of a job, with all tasks of an array."""
    mine = [job for job in jobs if wanted in {int(job["job_id"]), number(job["array"].get("job_id"))}]
    if not mine:
        return None
    reports = tuple(
        Report(
            id=wanted,
            task=str(number(job["array"].get("task_id"))) if number(job["array"].get("job_id")) else "",
            tag=tag_in((job.get("comment") or {}).get("job") or ""),
            state=state(job["state"]["current"]),
            submitted=number(job["time"]["submission"]),
            start=number(job["time"]["start"]),
            end=number(job["time"]["end"]),
            nodes="" if job.get("nodes") == "None assigned" else job.get("nodes") or "",
            node_count=number(job.get("allocation_nodes")),
            status=status_of(job.get("exit_code")),
        )
        for job in mine
    )
    totals = [job["time"]["total"] for job in mine]
    resident = [
        number(entry["count"])
        for job in mine
        for step in job.get("steps") or ()
        for entry in step["tres"]["requested"]["max"]
        if entry["type"] == "mem"
    ]
    return Accounted(
        reports=reports,
        elapsed=sum(number(job["time"]["elapsed"]) for job in mine),
        cpu=round(sum(total["seconds"] + total["microseconds"] / 1e6 for total in totals), 3),
        memory=max(resident, default=0),
        tres=",".join(tres_word(entry) for entry in mine[0].get("tres", {}).get("allocated") or ()),
    )


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
        limit = number(partition.get("max_time_limit"))
        found.append(
            Partition(
                name=name,
                nodes=len(mine) or number(partition.get("total_nodes")),
                cpus=min((number(node.get("cpus")) for node in mine), default=0),
                memory=min((number(node.get("real_memory")) for node in mine), default=0),
                minutes=limit or None,
                features=tuple(sorted(features)),
                up="UP" in str(partition.get("state")),
            )
        )
    return found


def feature_list(node: dict[str, Any]) -> list[str]:
    features = node.get("active_features") or node.get("features") or ()
    return [feature for feature in features.split(",") if feature] if isinstance(features, str) else list(features)
