"""An observer of a Slurm that answers what it should not."""

from __future__ import annotations

import http.server
import json
import queue
import socket
import threading
import time
from typing import TYPE_CHECKING, cast

import pytest

from pinnace.bridge.observer import Observer, WatchedJob
from pinnace.errors import SlurmError, SlurmUnreachableError
from pinnace.slurm.endpoint import Endpoint
from pinnace.slurm.jobs import QueuedJob
from pinnace.slurm.rest import Rest
from pinnace.slurm.states import JobState

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.slurm.backend import Backend

TAG = "pinnace-bridge:uid/1"


class Odd(http.server.BaseHTTPRequestHandler):
    """Offers the interface, and then answers with an empty object."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        offer: object = {"paths": {"/slurm/v0.0.38/jobs": {}}} if self.path.startswith("/openapi") else {}
        self.wfile.write(json.dumps(offer).encode())

    def log_message(self, *_: object) -> None:
        pass


def test_one_that_is_not_understood_stops_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    told: queue.Queue[str] = queue.Queue()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Odd) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        observer = Observer(Rest(Endpoint.parse(f"127.0.0.1:{server.server_port}"), "alice", "token"), told.put)
        observer.watch(WatchedJob(key="default/job", tag=TAG, id=1, interval=0.1))
        assert told.get(timeout=60) == "default/job"
        server.shutdown()
    deadline = time.monotonic() + 60
    while not observer.error and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "not understood" in observer.error
    assert "KeyError" in capsys.readouterr().err
    observer.forget(TAG)


class Queue:
    """A Slurm with one job, which answers when it is told to."""

    def __init__(self) -> None:
        self.answering = threading.Semaphore(0)

    def jobs(self, ours: Callable[[str], bool]) -> list[QueuedJob]:
        assert ours(TAG)
        assert self.answering.acquire(timeout=60)
        return [QueuedJob(id=7, comment=TAG, state=JobState.RUNNING)]


def test_what_is_known_of_one_number_is_not_said_of_another() -> None:
    """Whoever writes another number into a status does not get that job cancelled for the reports of the first."""
    told: queue.Queue[str] = queue.Queue()
    slurm = Queue()
    observer = Observer(cast("Backend", slurm), told.put)
    observer.watch(WatchedJob(key="job", tag=TAG, id=7, interval=0.1))
    slurm.answering.release()
    assert told.get(timeout=60) == "job"
    assert [report.id for report in observer.reports(TAG) or ()] == [7]
    observer.watch(WatchedJob(key="job", tag=TAG, id=8, interval=0.1))
    assert observer.reports(TAG) is None
    slurm.answering.release()  # a question that was asked before may be answered now: it was about the first number
    slurm.answering.release()
    assert told.get(timeout=60) == "job"
    assert observer.reports(TAG) == ()
    observer.forget(TAG)
    slurm.answering.release()


class Forgetful(Queue):
    """A Slurm that answers as it is told to, one answer after another; its accounting knows nothing."""

    def __init__(self, *answers: bool) -> None:
        super().__init__()
        self.answers = list(answers)

    def jobs(self, ours: Callable[[str], bool]) -> list[QueuedJob]:
        shown = super().jobs(ours)
        return shown if self.answers.pop(0) else []

    def accounted(self, _jobs: object) -> dict[int, object]:
        return {}


def test_a_job_that_is_shown_again_was_never_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if another answer lacks it much later: what was asked of accounting begins anew."""
    monkeypatch.setattr("pinnace.bridge.observer.ACCOUNTING_TIMEOUT", 0.5)
    slurm = Forgetful(False, True, False)
    observer = Observer(cast("Backend", slurm), lambda _key: None)
    watched = {TAG: WatchedJob(key="job", tag=TAG, id=7, interval=0.1)}
    observer._watched = dict(watched)
    for reports in (0, 1, 0):
        slurm.answering.release()
        observer._poll(watched)
        assert len(observer.reports(TAG) or ()) == reports
        if not reports:
            assert observer.accounted(TAG) == (False, ())
        time.sleep(0.6)


def test_one_that_hangs_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinnace.slurm.rest.ANSWER_LIMIT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        backend = Rest(Endpoint.parse(f"127.0.0.1:{silent.getsockname()[1]}"), "alice", "token")
        for _ in range(2):
            with pytest.raises(SlurmUnreachableError, match="timed out"):
                backend.jobs(bool)
        silent.settimeout(5)
        silent.accept()[0].close()
        silent.settimeout(0.1)
        with pytest.raises(TimeoutError):
            silent.accept()  # the second time nobody was asked


class Unaccounted(Forgetful):
    def accounted(self, _jobs: object) -> dict[int, object]:
        raise SlurmError("sacct: Slurm accounting storage is disabled")


def test_what_slurm_has_forgotten_is_lost_where_there_is_no_accounting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinnace.bridge.observer.ACCOUNTING_ERROR_TIMEOUT", 0.0)
    slurm = Unaccounted(False, False)
    observer = Observer(cast("Backend", slurm), lambda _key: None)
    watched = {TAG: WatchedJob(key="job", tag=TAG, id=7, interval=0.1)}
    observer._watched = dict(watched)
    observer.accounted(TAG)
    slurm.answering.release()
    observer._poll(watched)
    assert observer.accounted(TAG) == (True, ())
