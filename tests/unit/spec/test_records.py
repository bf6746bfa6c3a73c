"""Where nodes are: as written, and asked for as seldom as it can be."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from pinnace.errors import ClusterError
from pinnace.spec.files import LIST_INTERVAL
from pinnace.spec.records import NodeAddresses, NodeRecord, NodeState

if TYPE_CHECKING:
    from pathlib import Path


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


def test_a_node_that_is_known_costs_no_look_at_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    NodeRecord(name="n1", state=NodeState.RUNNING, address="192.0.2.1", links=4000).write(tmp_path / "1.json")
    known = NodeAddresses(tmp_path)
    assert known.links(1)
    time.sleep(LIST_INTERVAL)
    monkeypatch.setattr(os, "listdir", lambda path: pytest.fail(f"{path} was listed"))
    assert known.links(1)
    monkeypatch.undo()
    assert known.links(2) is None


JOINING = NodeRecord(name="job-1", state=NodeState.JOINING)


def test_the_lowest_index_that_is_free_is_taken(tmp_path: Path) -> None:
    for index in (1, 2, 4, *range(5, 300)):
        JOINING.write(tmp_path / f"{index}.json")
    assert [JOINING.claim_index(tmp_path, first=1, last=4000) for _ in range(3)] == [3, 300, 301]


def test_of_many_that_join_at_once_each_has_an_index_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[object] = []
    original = os.link

    def link(source: str, target: str) -> None:
        tries.append(target)
        original(source, target)

    monkeypatch.setattr(os, "link", link)
    nodes = 400
    with ThreadPoolExecutor(nodes) as pool:
        found = list(pool.map(lambda _: JOINING.claim_index(tmp_path, first=1, last=4000), range(nodes)))
    assert len(set(found)) == nodes
    assert len(tries) <= 4 * nodes, "each tries a few, not as many as there are others"


def test_a_cluster_that_is_full_says_so(tmp_path: Path) -> None:
    assert {JOINING.claim_index(tmp_path, first=1, last=3) for _ in range(3)} == {1, 2, 3}
    with pytest.raises(ClusterError, match="the cluster has 4 nodes already, and addresses for no more") as caught:
        JOINING.claim_index(tmp_path, first=1, last=3)
    assert "--network" in str(caught.value.hint)
