"""Directories of the host as volumes: only those that were listed, whatever claims and classes say."""

from __future__ import annotations

from typing import Any

import pytest

from pinnace.controlplane.objects import SHARED
from pinnace.controlplane.podsecurity import HOST_PATH, host_path_classes
from pinnace.storage.claims import PROVISIONED_BY, Pool
from pinnace.storage.directories import Directories
from pinnace.storage.host_paths import HostPaths
from pinnace.storage.pool_reconciler import PoolReconciler
from unit.storage.fake_api import FakeApi
from unit.storage.samples import UID, claim

NAME = f"pvc-{UID}"


@pytest.fixture
def api() -> FakeApi:
    api = FakeApi()
    for _, body in host_path_classes(("/data", "/home/alice")):
        api.put("storageclasses", body)
    return api


def ask(class_name: str, **spec: Any) -> dict[str, Any]:
    return claim(provisioner=HOST_PATH, storageClassName=class_name, **spec)


def said(api: FakeApi) -> str:
    return " ".join(event["message"] for event in api.all("events"))


def test_a_listed_directory(api: FakeApi) -> None:
    HostPaths(api, ["/data"]).claim(ask("host-data"), None)
    (made,) = api.all("persistentvolumes")
    assert made["spec"]["hostPath"] == {"path": "/data", "type": "Directory"}
    assert made["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
    assert made["spec"]["claimRef"]["uid"] == UID
    assert not {"local", "nodeAffinity"} & made["spec"].keys()


def test_the_list_counts_and_not_the_class(api: FakeApi) -> None:
    hand = HostPaths(api, ["/data"])
    hand.claim(ask("host-home-alice"), None)
    hand.claim(ask("host-home-alice"), None)
    assert api.all("persistentvolumes") == []
    assert [event["reason"] for event in api.all("events")] == ["ProvisioningFailed"]
    assert "has not listed this directory" in said(api)


def test_a_claim_that_names_a_class_of_other_volumes(api: FakeApi) -> None:
    api.put("storageclasses", {"metadata": {"name": "shared"}, "provisioner": SHARED, "parameters": {"path": "/data"}})
    HostPaths(api, ["/data"]).claim(ask("shared"), None)
    assert api.all("persistentvolumes") == []
    assert "is for other volumes" in said(api)


def test_a_claim_that_asks_another_for_a_listed_directory(api: FakeApi, tmp_path: Any) -> None:
    """What a claim says of its provisioner may be anything; a volume of the class must be of that class."""
    reconciler = PoolReconciler(api, Pool(provisioner=SHARED), Directories(tmp_path / "volumes"))
    reconciler.claim(claim(provisioner=SHARED, storageClassName="host-data"), None)
    assert api.all("persistentvolumes") == []


def test_volumes_go_and_what_is_in_them_stays(api: FakeApi) -> None:
    hand = HostPaths(api, ["/data"])
    hand.claim(ask("host-data"), None)
    (made,) = api.all("persistentvolumes")
    hand.volume(made | {"status": {"phase": "Bound"}})
    assert api.all("persistentvolumes")
    hand.volume(made | {"status": {"phase": "Released"}, "metadata": made["metadata"] | {"annotations": {}}})
    assert api.all("persistentvolumes"), "not one of ours"
    assert made["metadata"]["annotations"] == {PROVISIONED_BY: HOST_PATH}
    hand.volume(made | {"status": {"phase": "Released"}})
    assert NAME not in {volume["metadata"]["name"] for volume in api.all("persistentvolumes")}
