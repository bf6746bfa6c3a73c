"""The provisioner, on an API in memory and real directories: it may die before any request; the end is the same."""

from __future__ import annotations

import copy
import itertools
import queue
from typing import TYPE_CHECKING, Any

import pytest

from pinnace.controlplane.objects import SCRATCH, SHARED
from pinnace.errors import ApiError
from pinnace.kube.watch import Changed, Listed
from pinnace.storage.claims import SELECTED_NODE, Pool, volume_for
from pinnace.storage.directories import Directories
from pinnace.storage.lost_nodes import LostNodes
from pinnace.storage.pool_reconciler import PoolReconciler
from pinnace.storage.provisioner import CLAIMS, VOLUMES, Provisioner
from unit.storage.fake_api import FakeApi
from unit.storage.samples import UID, bound, claim, storage_class, volume

if TYPE_CHECKING:
    from pathlib import Path

NAME = "default-data-8917389f1ab7"


class Died(BaseException):
    """What SIGKILL would be."""


class Mortal:
    """Lets so many requests pass, and dies."""

    def __init__(self) -> None:
        self.left = 10**6

    def __call__(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Died


@pytest.fixture
def mortal() -> Mortal:
    return Mortal()


@pytest.fixture
def api(mortal: Mortal) -> FakeApi:
    api = FakeApi(mortal)
    api.put("storageclasses", storage_class())
    return api


@pytest.fixture
def directories(tmp_path: Path) -> Directories:
    return Directories(tmp_path / "volumes" / "cluster")


def life(api: FakeApi, directories: Directories) -> None:
    """A provisioner that starts, does what there is to do, and is gone."""
    provisioner = Provisioner([PoolReconciler(api, Pool(provisioner=SHARED), directories)])
    for kind in (CLAIMS, VOLUMES):
        provisioner.note(Listed(kind=kind, objects=api.all(kind)))
    provisioner.begin()
    work_off(provisioner)


def work_off(provisioner: Provisioner, timeout: float = 0.0) -> None:
    """Everything that is due now, or within so many seconds after the last."""
    while provisioner.work(timeout):
        pass


def lives(api: FakeApi, directories: Directories, mortal: Mortal) -> None:
    """One life after the other, each a request longer, until one does not have to die."""
    for requests in itertools.count():
        mortal.left = requests
        try:
            life(api, directories)
        except Died:
            continue
        return


def test_a_claim_gets_one_volume_and_one_directory(api: FakeApi, directories: Directories, mortal: Mortal) -> None:
    api.put(CLAIMS, claim())
    lives(api, directories, mortal)
    (made,) = api.all(VOLUMES)
    assert made["metadata"]["name"] == f"pvc-{UID}"
    assert made["spec"]["local"]["path"] == str(directories.root / NAME)
    assert directories.ephemeral() == {NAME}
    assert [path.name for path in directories.root.glob("[!.]*")] == [NAME]


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
def test_a_deleted_volume_goes_with_its_data_or_without(
    api: FakeApi, directories: Directories, mortal: Mortal, policy: str
) -> None:
    path = directories.make(NAME, ephemeral=True)
    going = volume(path=str(path), policy=policy, phase="Released", going=policy == "Retain")
    going["metadata"]["finalizers"] = ["pinnace.dev/data"]
    api.put(VOLUMES, going)
    lives(api, directories, mortal)
    assert not api.all(VOLUMES)
    assert path.exists() == (policy == "Retain")
    assert not directories.ephemeral()


def test_a_claim_grows(api: FakeApi, directories: Directories, mortal: Mortal) -> None:
    api.put(CLAIMS, bound(has="1Gi", wants="3Gi"))
    api.put(VOLUMES, volume(path=str(directories.root / NAME)))
    directories.prepare()
    lives(api, directories, mortal)
    assert api.all(VOLUMES)[0]["spec"]["capacity"]["storage"] == "3Gi"
    assert api.all(CLAIMS)[0]["status"]["capacity"]["storage"] == "3Gi"


def test_a_change_of_policy_is_noted(api: FakeApi, directories: Directories) -> None:
    path = directories.make(NAME, ephemeral=True)
    api.put(VOLUMES, volume(path=str(path), policy="Retain"))
    life(api, directories)
    assert not directories.ephemeral()
    api.put(VOLUMES, volume(path=str(path), policy="Delete"))
    life(api, directories)
    assert directories.ephemeral() == {NAME}


def test_what_belongs_to_nothing_goes_if_it_is_marked(api: FakeApi, directories: Directories) -> None:
    of_claim = directories.make(NAME, ephemeral=True)
    orphan = directories.make("default-orphan-1", ephemeral=True)
    retained = directories.make("default-retained-1", ephemeral=False)
    api.put(CLAIMS, claim())
    strange = volume(path="")  # says that it is ours, and has no directory at all
    del strange["spec"]["local"]
    strange["metadata"]["name"] = "strange"
    api.put(VOLUMES, strange)
    life(api, directories)
    assert [path.exists() for path in (of_claim, orphan, retained)] == [True, False, True]


def test_a_refusal_is_said_once(api: FakeApi, directories: Directories) -> None:
    reconciler = PoolReconciler(api, Pool(provisioner=SHARED), directories)
    reconciler.claim(claim(volumeMode="Block"), None)
    reconciler.claim(claim(volumeMode="Block"), None)
    (event,) = api.all("events")
    assert "no block devices" in event["message"]
    assert not api.all(VOLUMES)


def test_what_fails_is_tried_again_and_the_rest_goes_on(directories: Directories) -> None:
    """The class of one claim is not there yet."""
    api = FakeApi()
    other = copy.deepcopy(claim(storageClassName="later"))
    other["metadata"] |= {"name": "other", "uid": "0000"}
    for thing in (other, claim()):
        api.put(CLAIMS, thing)
    api.put("storageclasses", storage_class())
    provisioner = Provisioner([PoolReconciler(api, Pool(provisioner=SHARED), directories)])
    provisioner.note(Listed(kind=CLAIMS, objects=api.all(CLAIMS)))
    provisioner.note(Listed(kind=VOLUMES, objects=[]))
    provisioner.begin()
    work_off(provisioner)
    assert [made["metadata"]["name"] for made in api.all(VOLUMES)] == [f"pvc-{UID}"]
    later = storage_class()
    later["metadata"]["name"] = "later"
    api.put("storageclasses", later)
    assert len(provisioner.queue) == 1
    work_off(provisioner, timeout=1.0)
    assert len(api.all(VOLUMES)) == 2
    assert not provisioner.queue


def test_what_is_gone_is_not_looked_at() -> None:
    provisioner = Provisioner([])
    provisioner.note(Listed(kind=CLAIMS, objects=[claim()]))
    provisioner.note(Listed(kind=VOLUMES, objects=[]))
    provisioner.note(Changed(kind=CLAIMS, object=claim(), gone=True))
    assert provisioner.cache[CLAIMS] == {}
    work_off(provisioner)
    assert not provisioner.queue


def test_the_trash_is_emptied_again_after_any_failure(
    api: FakeApi, directories: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: queue.Queue[None] = queue.Queue()

    def fail() -> None:
        calls.put(None)
        raise RecursionError

    monkeypatch.setattr(directories, "empty_trash", fail)
    reconciler = PoolReconciler(api, Pool(provisioner=SHARED), directories)
    reconciler.begin([], [])
    for _ in range(2):
        calls.get(timeout=10)
        reconciler.discarded.set()


class TestDeparted:
    """n1 is there, n2 is not."""

    @pytest.fixture
    def api(self) -> FakeApi:
        api = FakeApi()
        api.put("nodes", {"metadata": {"name": "n1"}})
        return api

    @pytest.mark.parametrize(("node", "left"), [("n1", "n1"), ("n2", None)])
    def test_the_scheduler_chooses_again(self, api: FakeApi, node: str, left: str | None) -> None:
        waits = claim(provisioner=SCRATCH, node=node)
        api.put(CLAIMS, waits)
        LostNodes(api).claim(waits, None)
        assert api.all(CLAIMS)[0]["metadata"]["annotations"].get(SELECTED_NODE) == left

    @pytest.mark.parametrize(
        ("node", "phase", "stays"), [("n1", "Released", 1), ("n2", "Released", 0), ("n2", "Bound", 1)]
    )
    def test_volumes_follow_their_data(self, api: FakeApi, tmp_path: Path, node: str, phase: str, stays: int) -> None:
        pool = Pool(provisioner=SCRATCH, node=node)
        made: dict[str, Any] = volume_for(claim(), storage_class(), pool, tmp_path) | {"status": {"phase": phase}}
        made["metadata"]["resourceVersion"] = "1"
        api.put(VOLUMES, made)
        LostNodes(api).volume(made)
        assert len(api.all(VOLUMES)) == stays

    def test_an_api_that_does_not_answer_is_no_proof(self, api: FakeApi, tmp_path: Path) -> None:
        def fail() -> None:
            raise ApiError(503, "later")

        pool = Pool(provisioner=SCRATCH, node="n2")
        made = volume_for(claim(), storage_class(), pool, tmp_path) | {"status": {"phase": "Released"}}
        api.put(VOLUMES, made)
        api.before = fail
        with pytest.raises(ApiError):
            LostNodes(api).volume(made)
        assert api.all(VOLUMES)
