"""Where nodes are: as written, and asked for as seldom as it can be."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from pinnace.spec.records import LIST_INTERVAL, NodeAddresses, NodeRecord, NodeState

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_node_is_where_its_record_says(tmp_path: Path) -> None:
    NodeRecord(name="n3", state=NodeState.RUNNING, address="192.0.2.3", links=4000).write(tmp_path / "3.json")
    assert NodeAddresses(tmp_path).links(3) == ("192.0.2.3", 4000)


def test_a_node_that_has_ended_is_nowhere(tmp_path: Path) -> None:
    NodeRecord(name="n3", state=NodeState.ENDED).write(tmp_path / "3.json")
    assert NodeAddresses(tmp_path).links(3) is None


def test_a_node_that_comes_is_found(tmp_path: Path) -> None:
    known = NodeAddresses(tmp_path)
    assert known.links(1) is None
    NodeRecord(name="n1", state=NodeState.RUNNING, address="192.0.2.1", links=4000).write(tmp_path / "1.json")
    time.sleep(LIST_INTERVAL)
    assert known.links(1) == ("192.0.2.1", 4000)


def test_a_pod_that_tries_every_address_costs_the_file_server_next_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[object] = []
    original = os.listdir

    def listdir(path: Path) -> list[str]:
        listed.append(path)
        return original(path)

    monkeypatch.setattr(os, "listdir", listdir)
    known = NodeAddresses(tmp_path)
    begin = time.monotonic()
    assert not any(known.links(index) for index in range(10_000))
    assert len(listed) <= 1 + (time.monotonic() - begin) / LIST_INTERVAL
