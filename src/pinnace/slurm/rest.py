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

from pinnace.deadline import DeadlineSocket
from pinnace.errors import SlurmError, SlurmNotFoundError, SlurmUnreachableError
from pinnace.slurm.errors import is_not_found, is_transient, is_unspecified
from pinnace.slurm.rest_properties import VERSIONS, submission
from pinnace.slurm.rest_records import number, parse_accounted, parse_job, parse_partitions
from pinnace.slurm.scripts import wrapped
from pinnace.validation import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pinnace.slurm.backend import JobDescription
    from pinnace.slurm.endpoint import Endpoint
    from pinnace.slurm.jobs import AccountedJob, QueuedJob
    from pinnace.slurm.partitions import Partition

ANSWER_LIMIT = 30.0  # seconds for an answer, from the connection to its last byte
LARGEST_ANSWER = 64 << 20  # bytes of an answer: that about the jobs of a whole site
TMP = "/tmp"  # noqa: S108 - where slurmd would put a job anyway
NOT_FOUND = ("no job", "not found")  # as slurmrestd has it, besides what slurmctld says


class Rest:
    """The Slurm behind a slurmrestd."""

    def __init__(self, endpoint: Endpoint, user: str, token: str, *, directory: str = TMP, files: bool = False) -> None:
        self._endpoint, self.user, self._token = endpoint, user, token
        self.directory, self.files = directory, files
        self._version = ""
        self._silent = (0.0, "")  # until when it is not asked again, and why

    # --- the interface ------------------------------------------------------------------------------------------

    def submit(self, job: JobDescription) -> int:
        # slurmrestd has a field for arguments, of which that of 22.05 dies.
        script = wrapped(job.script, job.arguments) if job.arguments else job.script
        body = submission(script, job.options, job.environment, self.version())
        answer = self._ask("POST", "slurm", "job/submit", body)
        return int(number(answer.get("job_id")) or answer["result"]["job_id"])

    def jobs(self, ours: Callable[[str], bool]) -> list[QueuedJob]:
        answer = self._ask("GET", "slurm", "jobs")
        # slurmrestd does not know everybody's name: of jobs without one, only those are taken whose number we know.
        mine = (job for job in answer["jobs"] if job.get("user_name") in {self.user, "", None})
        return [parse_job(job) for job in mine if ours(job.get("comment") or "")]

    def accounted(self, jobs: Iterable[int]) -> dict[int, tuple[AccountedJob, ...]]:
        found = {}
        for job in jobs:
            with contextlib.suppress(SlurmNotFoundError):
                if about := parse_accounted(self._ask("GET", "slurmdb", f"job/{job}")["jobs"], job):
                    found[job] = about
        return found

    def recall(self, ours: Callable[[AccountedJob], bool], *, name: str, since: int) -> int | None:
        """By its comment where accounting keeps these, else by its name: submitted in the minute after ``since``."""
        answer = self._ask("GET", "slurmdb", f"jobs?start_time=uts{since}")
        for entry in answer["jobs"]:
            if self.user not in {entry.get("user"), entry["association"]["user"]}:  # of 26.05, only the first is set
                continue
            wanted = int(number(entry["array"].get("job_id")) or entry["job_id"])
            [job] = parse_accounted([entry], wanted)
            close = job.name == name and 0 <= job.submitted - since <= 2 * ANSWER_LIMIT
            # slurmctld, which does keep comments, has just been asked for jobs that have not ended.
            if ours(job) or (close and not job.comment and job.state.has_ended):
                return job.id
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
            common = [version for version in VERSIONS if version in offered]
            if not common:
                offer = ", ".join(sorted(offered)) or "nothing"
                raise SlurmError(f"slurmrestd at {self._endpoint} offers {offer}, of which none is known here")
            self._version = common[-1]
        return self._version

    def _ask(self, method: str, part: str, what: str, body: object = None) -> dict[str, Any]:
        version = self.version()
        try:
            return self._request(method, f"/{part}/{version}/{what}", body)
        except SlurmUnreachableError:
            self._version = ""  # it may come back as another version
            raise

    def _request(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        self._check_token()
        begun = time.monotonic()
        if begun < self._silent[0]:
            raise SlurmUnreachableError(self._silent[1])
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
                status, data = response.status, response.read(LARGEST_ANSWER + 1)
        except (OSError, http.client.HTTPException) as error:
            message = f"slurmrestd at {self._endpoint}: {printable(str(error), 200) or type(error).__name__}"
            # One that hangs must not keep us from the others for long.
            clock = time.monotonic()
            self._silent = (clock + 2 * (clock - begun), message)
            raise SlurmUnreachableError(message) from error
        finally:
            connection.close()
        if len(data) > LARGEST_ANSWER:
            most = f"{LARGEST_ANSWER >> 20} MiB"
            raise SlurmUnreachableError(f"slurmrestd at {self._endpoint} answers with more than {most}")
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
            raise SlurmUnreachableError(f"slurmrestd does not accept the token of {self.user}: {said}")
        if is_not_found(said) or any(words in said.lower() for words in NOT_FOUND):
            raise SlurmNotFoundError(said)
        # 22.05 has no better word than this for a token that slurmctld refuses: it may pass.
        unspecified = all(isinstance(error, dict) and is_unspecified(str(error.get("error"))) for error in errors)
        if unspecified or is_transient(said) or status in {502, 503, 504}:
            raise SlurmUnreachableError(f"slurmrestd: {said}")
        raise SlurmError(f"slurmrestd: {said}")

    def _check_token(self) -> None:
        """slurmrestd's own words for a token that has expired do not help anybody."""
        if (end := expiry(self._token)) is not None and end < time.time():
            when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(end))
            raise SlurmUnreachableError(
                f"the token of {self.user} expired at {when}", hint="Put a new one into the Secret (`scontrol token`)."
            )

    def _connection(self) -> http.client.HTTPConnection:
        if self._endpoint.scheme == "unix":
            return _UnixConnection(self._endpoint.path)
        if self._endpoint.scheme == "https":
            context = ssl.create_default_context()
            return _TlsConnection(self._endpoint.netloc, timeout=ANSWER_LIMIT, context=context)
        return _PlainConnection(self._endpoint.netloc, timeout=ANSWER_LIMIT)


class _PlainConnection(http.client.HTTPConnection):
    """All that is asked on one of these ends within the limit."""

    def connect(self) -> None:
        deadline = time.monotonic() + ANSWER_LIMIT
        super().connect()
        self.sock = DeadlineSocket(self.sock, deadline)


class _TlsConnection(http.client.HTTPSConnection):
    def connect(self) -> None:
        deadline = time.monotonic() + ANSWER_LIMIT
        super().connect()
        self.sock = DeadlineSocket(self.sock, deadline)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=ANSWER_LIMIT)
        self._path = path

    def connect(self) -> None:
        deadline = time.monotonic() + ANSWER_LIMIT
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(ANSWER_LIMIT)
        sock.connect(self._path)
        self.sock = DeadlineSocket(sock, deadline)


def expiry(token: str) -> float | None:
    """When a JWT ends, as it says itself; None if it does not."""
    with contextlib.suppress(ValueError, LookupError, TypeError, OverflowError, RecursionError):
        payload = token.split(".")[1]
        return max(0.0, float(json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"]))
    return None


def words_of(error: object) -> str:
    """An error of slurmrestd's in one line: of its answer, only what is known to be an error's words."""
    known = error if isinstance(error, dict) else {}
    parts = (known.get(key) for key in ("error", "description", "source"))
    return printable(": ".join(dict.fromkeys(str(part) for part in parts if part)), 300) or "an error without words"
