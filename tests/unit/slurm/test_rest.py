"""What slurmrestd says, understood; servers that answer slowly, endlessly or with secrets of others."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from pinnace.errors import SlurmError, SlurmUnreachableError
from pinnace.slurm import rest
from pinnace.slurm.endpoint import Endpoint
from pinnace.slurm.rest_properties import job_properties, submission
from pinnace.slurm.rest_records import parse_job, parse_partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pinnace.slurm.options import SbatchOptions

pytestmark = pytest.mark.timeout(60)
PRIVATE = "somebody else's secret"


def test_an_expired_token_is_not_even_sent() -> None:
    payload = base64.urlsafe_b64encode(json.dumps({"exp": int(time.time()) - 60}).encode()).decode().rstrip("=")
    with pytest.raises(SlurmUnreachableError, match="expired at"):
        rest.Rest(Endpoint.parse("http://192.0.2.1:1"), "alice", f"x.{payload}.y").jobs(bool)
    assert rest.expiry("no token at all") is None


def test_a_submission_in_old_and_new_forms() -> None:
    options: SbatchOptions = {"nodes": "1-2", "mem": "1G", "time": "5"}
    old, new = (submission("#!/bin/sh", options, {"A": "b"}, version)["job"] for version in ("v0.0.38", "v0.0.40"))
    assert (old["nodes"], old["memory_per_node"], old["environment"]["A"]) == ([1, 2], 1024, "b")
    assert (new["nodes"], new["memory_per_node"]) == ("1-2", {"set": True, "number": 1024})
    assert "A=b" in new["environment"]
    assert "argv" not in old


def test_the_script_is_where_a_version_has_it() -> None:
    old, new = (submission("#!/bin/sh", {}, {}, version) for version in ("v0.0.40", "v0.0.45"))
    assert (old["script"], "script" in old["job"]) == ("#!/bin/sh", False)
    assert ("script" in new, new["job"]["script"]) == (False, "#!/bin/sh")


@pytest.mark.parametrize(
    ("option", "value", "old", "new"),
    [
        ("gres", "gpu:tesla:2,fpga", {"gres": "gpu:tesla:2,fpga"}, {"tres_per_node": "gres/gpu:tesla:2,gres/fpga"}),
        ("gpus", "2", {"gpus": "2"}, {"tres_per_job": "gres/gpu:2"}),
        ("exclusive", None, {"exclusive": "exclusive"}, {"shared": ["none"]}),
        ("exclusive", "user", {"exclusive": "user"}, {"shared": ["user"]}),
        ("open-mode", "append", {"open_mode": "append"}, {"open_mode": ["APPEND"]}),
        ("mail-type", "end,time_limit_80", {"mail_type": "end,time_limit_80"}, {"mail_type": ["END", "TIME=80%"]}),
        ("kill-on-invalid-dep", "no", {"kill_on_invalid_dependency": False}, {"flags": ["NO_KILL_INVALID_DEPENDENCY"]}),
        ("signal", "B:USR1@60", {"signal": "B:USR1@60"}, {"kill_warning_signal": "USR1",
         "kill_warning_delay": {"set": True, "number": 60}, "kill_warning_flags": ["BATCH_JOB"]}),
        ("signal", "BUS", {"signal": "BUS"}, {"kill_warning_signal": "BUS"}),
        ("comment", "a", {"comment": "a"}, {"comment": "a"}),
    ],
)  # fmt: skip
def test_options_have_the_names_of_each_version(
    option: str, value: str | None, old: dict[str, object], new: dict[str, object]
) -> None:
    assert job_properties({option: value}, "v0.0.38") == old
    assert job_properties({option: value}, "v0.0.42") == job_properties({option: value}, "v0.0.45") == new


def test_a_partition_in_old_and_new_forms() -> None:
    nodes = {"n1": {"name": "n1", "partitions": ["main"], "cpus": 8, "real_memory": 8000, "features": ["cpu"]}}
    old = {"name": "main", "max_time_limit": 60, "state": "UP", "total_nodes": 1}
    new = {"name": "main", "maximums": {"time": {"set": True, "number": 60}}, "partition": {"state": ["UP"]},
           "nodes": {"total": 1}}  # fmt: skip
    assert parse_partitions([old], nodes) == parse_partitions([new], nodes)
    assert parse_partitions([new], {})[0].nodes == 1


def test_a_job_in_old_and_new_forms() -> None:
    old = {"job_id": 23, "array_job_id": 22, "array_task_id": 0, "array_task_string": "", "job_state": "COMPLETED",
           "comment": "pinnace-bridge:u/1", "exit_code": 768, "start_time": 5}  # fmt: skip
    new = {"job_id": 23, "array_job_id": {"set": True, "number": 22}, "array_task_id": {"set": True, "number": 0},
           "array_task_string": "", "job_state": ["COMPLETED"], "comment": "pinnace-bridge:u/1",
           "exit_code": {"return_code": {"set": True, "number": 3}, "signal": {}},
           "start_time": {"set": True, "number": 5}}  # fmt: skip
    assert parse_job(old) == parse_job(new)
    assert (parse_job(old).id, parse_job(old).task, parse_job(old).status) == (22, "0", 768)


@contextlib.contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[Endpoint]:
    """One that does the same with every connection, as long as somebody is there."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.recv(65536)
                        answer(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield Endpoint.parse(f"127.0.0.1:{listening.getsockname()[1]}")


def drip(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        connection.sendall(b" ")
        time.sleep(0.1)


def drip_headers(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        connection.sendall(b"x")
        time.sleep(0.1)


def pour(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n[")
    while True:
        connection.sendall(b"0," * 32768)


def nest(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"[" * 200_000)


@pytest.mark.parametrize("answer", [drip, drip_headers])
def test_an_answer_has_a_limit_as_a_whole(
    answer: Callable[[socket.socket], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pinnace.slurm.rest.ANSWER_LIMIT", 1.0)
    with server(answer) as endpoint:
        begun = time.monotonic()
        with pytest.raises(SlurmUnreachableError, match="timed out"):
            rest.Rest(endpoint, "alice", "token").jobs(bool)
        assert time.monotonic() - begun < 3


def test_an_answer_has_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinnace.slurm.rest.LARGEST_ANSWER", 1 << 20)
    with server(pour) as endpoint, pytest.raises(SlurmUnreachableError, match="more than 1 MiB"):
        rest.Rest(endpoint, "alice", "token").jobs(bool)


def test_an_answer_may_be_no_json_that_anybody_can_read() -> None:
    with server(nest) as endpoint, pytest.raises(SlurmError):
        rest.Rest(endpoint, "alice", "token").version()


class Stranger(http.server.BaseHTTPRequestHandler):
    """No slurmrestd."""

    asked: list[str]
    status: int

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(self.status)
        self.send_header("Location", "/elsewhere")
        self.end_headers()
        if self.status != 500:
            self.wfile.write(PRIVATE.encode())
        else:
            errors = [{"error": f"refused\x1b[31m\n{'x' * 5000}", "other": PRIVATE}, PRIVATE]
            self.wfile.write(json.dumps({"errors": errors, "secret": PRIVATE}).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("status", [200, 302, 307, 400, 403, 404, 500])
def test_of_an_answer_only_slurms_own_errors_are_shown(status: int) -> None:
    Stranger.asked, Stranger.status = [], status
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        endpoint = Endpoint.parse(f"127.0.0.1:{found.server_port}")
        with pytest.raises(SlurmError) as error:
            rest.Rest(endpoint, "alice", "token").version()
        found.shutdown()
    assert PRIVATE not in error.value.message
    assert error.value.message.isprintable()
    assert len(error.value.message) < 1000
    assert Stranger.asked == ["/openapi/v3"]


@pytest.mark.parametrize("text", ["[" * 5000, '{"exp": 1%s}' % ("0" * 400), '{"exp": "x"}', "[]"])
def test_a_token_that_does_not_say_when_it_ends(text: str) -> None:
    assert rest.expiry(f"a.{base64.urlsafe_b64encode(text.encode()).decode()}.c") is None


@pytest.mark.parametrize("when", ["-1e300", "-Infinity", "0"])
def test_a_token_that_ended_long_ago(when: str) -> None:
    payload = base64.urlsafe_b64encode(f'{{"exp": {when}}}'.encode()).decode()
    with pytest.raises(SlurmUnreachableError, match="expired at 1970"):
        rest.Rest(Endpoint.parse("127.0.0.1:1"), "alice", f"a.{payload}.c").jobs(bool)
