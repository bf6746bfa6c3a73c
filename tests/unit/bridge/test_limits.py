"""Servers that answer slowly, endlessly or with secrets of others; rows that are forged; queues that are flooded."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import queue
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from pinnace.bridge import commandline, rest
from pinnace.bridge.backend import Report, UnreachableError, tag_in
from pinnace.bridge.controller import OF_ONE, Work
from pinnace.bridge.crds import definitions
from pinnace.bridge.observer import Observer, WatchedJob
from pinnace.bridge.policy import Endpoint
from pinnace.bridge.slurmjob import INTENT, SlurmJob, output_path
from pinnace.errors import SlurmError
from pinnace.kube import lease
from pinnace.slurm.states import JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.timeout(60)
PRIVATE = "somebody else's secret"
UID = "00000000-0000-4000-8000-000000000001"
TAG = f"pinnace-bridge:{UID}/1"


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
    monkeypatch.setattr("pinnace.bridge.rest.LIMIT", 1.0)
    with server(answer) as endpoint:
        begun = time.monotonic()
        with pytest.raises(UnreachableError, match="timed out"):
            rest.Rest(endpoint, "alice", "token").jobs()
        assert time.monotonic() - begun < 3


def test_an_answer_has_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinnace.bridge.rest.LARGEST", 1 << 20)
    with server(pour) as endpoint, pytest.raises(UnreachableError, match="more than 1 MiB"):
        rest.Rest(endpoint, "alice", "token").jobs()


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


def test_rows_cannot_be_forged() -> None:
    word = commandline.separator()
    assert word != commandline.separator()

    def row(number: str, comment: str, state: str = "RUNNING") -> str:
        return "".join(f"{field}{word}" for field in (number, comment, state, "None", "", "", "", "", "1", "0")) + "\n"

    forged = "mine\n8\x1fpinnace-bridge:other/1\x1fRUNNING\x1f<0123>\u2028\x85"
    text = row("5", forged) + row("6", f"{TAG} {forged}") + row("7", f"x {TAG}") + row("no number", TAG)
    [report] = commandline.parse_queue(text, word, "alice")
    assert (report.id, report.tag, report.user) == (6, TAG, "alice")
    assert commandline.parse_queue(text[: len(text) // 3], word, "alice") == []


def test_a_tag_is_where_we_put_it() -> None:
    assert tag_in(f"{TAG} pinnace-bridge:other/1") == TAG
    assert tag_in(f"x {TAG}") == tag_in(f"{TAG}x") == tag_in("pinnace-bridge:../1") == ""
    line = commandline.tag_of_line
    assert line(f"sbatch --parsable --comment={TAG} --job-name=x") == TAG
    assert line(f"/usr/bin/sbatch --parsable '--comment={TAG} mine' --job-name=x") == TAG
    assert line(f"sbatch --job-name=sbatch --parsable --comment={TAG}") == ""
    assert line(f"sbatch --parsable --job-name=x --comment={TAG}") == ""


class Forger:
    """A Slurm in which somebody has written our tag on another job."""

    user, files = "alice", False

    def jobs(self) -> list[Report]:
        mine = Report(id=7, tag=TAG, state=JobState.RUNNING)
        return [Report(id=8, tag=TAG, state=JobState.FAILED), mine]


def test_a_job_is_known_by_number_and_tag() -> None:
    told = threading.Event()
    observer = Observer(Forger(), lambda _: told.set())  # type: ignore[arg-type]
    observer.watch(WatchedJob(key="a/b", tag=TAG, id=7, interval=1e15))
    assert told.wait(10)
    told.clear()
    observer.watch(
        WatchedJob(key="a/c", tag=f"{TAG}1", id=8, interval=1e15)
    )  # it asks again, whenever the first is due
    assert told.wait(10)
    assert [report.id for report in observer.reports(TAG) or ()] == [7]
    observer.forget(TAG)
    observer.forget(f"{TAG}1")


def test_the_bridges_environment_is_not_the_jobs() -> None:
    given = {"PATH": "/bin", "HOME": "/h", "SLURM_CONF": "/c", "SLURM_JWT": "x", "AWS_SECRET_ACCESS_KEY": "x",
             "KUBECONFIG": "x", "SBATCH_ACCOUNT": "a", "LD_PRELOAD": "x", "SLURM_JOB_ID": "1"}  # fmt: skip
    assert set(commandline.inherited(given)) == {"PATH", "HOME", "SLURM_CONF", "SBATCH_ACCOUNT"}


@pytest.mark.parametrize("note", ["", "x", "1", "1 2", "a b c", "1 -5 x", "9" * 5000 + " 0 x", "1 0\n x"])
def test_notes_that_are_none(note: str) -> None:
    metadata = {"creationTimestamp": "2026-01-01T00:00:00Z", "annotations": {INTENT: note}}
    assert SlurmJob({"metadata": metadata}).intent is None
    metadata["annotations"] = {INTENT: "1 0 name"}
    assert SlurmJob({"metadata": metadata}).intent == (1767225600, "name")
    for ahead, believed in ((100, True), (10_000, False)):
        since = int(time.time()) + ahead
        metadata["annotations"] = {INTENT: f"1 {since} name"}
        assert SlurmJob({"metadata": metadata}).intent == (since if believed else 1767225600, "name")


def test_a_width_in_a_file_name_is_slurms() -> None:
    for width in ("300000000", "9" * 5000, "²"):
        assert len(output_path(f"%{width}j", "/d", job=1, name="n", user="u")) < 100


def test_a_lease_can_hold_anything() -> None:
    for holder in (f"{lease.place()}/x/1", f"{lease.place()}//", f"{lease.place()}/²/1", "/", "///"):
        assert lease.is_dead(holder) is False


def test_a_process_can_have_any_name() -> None:
    code = "open('/proc/self/comm', 'wb').write(b'\\xff\\xfe)'); print('x', flush=True); input()"
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        assert lease.is_dead(lease.identity(process.pid)) is False
        process.kill()


@pytest.mark.parametrize("text", ["[" * 5000, '{"exp": 1%s}' % ("0" * 400), '{"exp": "x"}', "[]"])
def test_a_token_that_does_not_say_when_it_ends(text: str) -> None:
    assert rest.expiry(f"a.{base64.urlsafe_b64encode(text.encode()).decode()}.c") is None


@pytest.mark.parametrize("when", ["-1e300", "-Infinity", "0"])
def test_a_token_that_ended_long_ago(when: str) -> None:
    payload = base64.urlsafe_b64encode(f'{{"exp": {when}}}'.encode()).decode()
    with pytest.raises(UnreachableError, match="expired at 1970"):
        rest.Rest(Endpoint.parse("127.0.0.1:1"), "alice", f"a.{payload}.c").jobs()


def test_namespaces_take_turns() -> None:
    work = Work()
    for number in range(10_000):
        work.add(("kind", f"flood/{number}"))
    work.add(("kind", "other/1"))
    taken = [work.take() for _ in range(2)]
    assert ("kind", "other/1") in taken
    more = [work.take() for _ in range(OF_ONE - 1)]
    assert all(key[1].startswith("flood/") for key in more)
    # All workers that one namespace may have are busy with it: the next is for others.
    waiting = threading.Thread(target=lambda: taken.append(work.take()), daemon=True)
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    work.add(("kind", "other/2"))
    waiting.join(10)
    assert taken[-1] == ("kind", "other/2")
    work.done(more[0])
    assert work.take()[1].startswith("flood/")


@pytest.mark.parametrize("delay", [1e15, 9.2e18, float("inf")])
def test_a_delay_has_a_limit(delay: float) -> None:
    work, taken = Work(), queue.Queue[object]()
    work.add(("kind", "a/later"), delay)
    threading.Thread(target=lambda: taken.put(work.take()), daemon=True).start()
    with pytest.raises(queue.Empty):
        taken.get(timeout=0.3)
    work.add(("kind", "a/now"))
    assert taken.get(timeout=10) == ("kind", "a/now")


def test_what_can_be_said_at_most() -> None:
    specs = [body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] for body in definitions()]
    fields = specs[0]["properties"] | specs[1]["properties"]
    for name in ("ttlSecondsAfterFinished", "updateIntervalSeconds", "updateinterval"):
        assert fields[name]["maximum"] < 1 << 31


def test_what_changes_meanwhile_is_looked_at_again() -> None:
    work = Work()
    work.add(("kind", "a/1"))
    assert work.take() == ("kind", "a/1")
    work.add(("kind", "a/1"))
    work.add(("kind", "a/1"))
    work.add(("kind", "a/2"))
    assert work.take() == ("kind", "a/2")
    work.done(("kind", "a/1"))
    assert work.take() == ("kind", "a/1")
