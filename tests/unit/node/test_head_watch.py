"""A node whose first node cannot be reached says so in seconds; one that was reached is waited for."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from pinnace.network.addresses import choose
from pinnace.node import head_watch
from pinnace.spec import HEAD, ClusterSpec, NodeRecord, NodeState

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterSpec:
    monkeypatch.setattr(head_watch, "UNREACHED_LIMIT", 0.5)
    monkeypatch.setattr(head_watch, "RETRY_PAUSE", 0.01)
    for part in ("nodes", "secrets"):
        (tmp_path / part).mkdir()
    (tmp_path / "secrets/link.key").write_bytes(bytes(32))
    return ClusterSpec(name="c", directory=tmp_path, ranges=choose([]), binaries={})


def head(cluster: ClusterSpec, state: NodeState, port: int = 1) -> None:
    record = NodeRecord(name="n1", state=state, address="127.0.0.1", links=port)
    record.write(cluster.node_file(HEAD))


def test_a_head_that_is_never_reached_is_named(cluster: ClusterSpec) -> None:
    head(cluster, NodeState.RUNNING)
    assert head_watch.wait_for_end(cluster, 1) == ("it does not reach port 1 of 127.0.0.1, where the first node n1 is")


def test_a_head_that_has_ended_is_no_failure(cluster: ClusterSpec) -> None:
    head(cluster, NodeState.ENDED)
    assert head_watch.wait_for_end(cluster, 1) == ""


def test_a_head_that_was_reached_is_waited_for_however_busy_it_is(cluster: ClusterSpec) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # accepts, and never answers
        head(cluster, NodeState.RUNNING, listener.getsockname()[1])

        def hang_up() -> None:
            connection, _ = listener.accept()
            connection.close()
            head(cluster, NodeState.RUNNING)  # nobody listens there

        threading.Thread(target=hang_up, daemon=True).start()
        threading.Timer(1.5, lambda: head(cluster, NodeState.ENDED)).start()
        assert head_watch.wait_for_end(cluster, 1) == ""
