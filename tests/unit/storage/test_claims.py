"""What claims ask for, and what becomes of volumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pinnace.controlplane.objects import SCRATCH, SHARED
from pinnace.storage import claims
from pinnace.storage.claims import Fate, Pool
from unit.storage.samples import UID, bound, claim, storage_class, volume

POOL = Pool(provisioner=SHARED)
ON_N1 = Pool(provisioner=SCRATCH, node="n1")


def test_only_claims_that_name_us_are_ours_to_answer() -> None:
    assert POOL.serves(claim())
    assert not POOL.serves(claim(provisioner="example.com/other"))
    assert not POOL.serves(claim(volumeName="chosen-by-hand"))
    waits = claim()
    waits["metadata"]["annotations"] = {}  # the controller-manager may still find an existing volume
    assert not POOL.serves(waits)
    going = claim()
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not POOL.serves(going)


def test_scratch_is_answered_by_the_chosen_node_alone() -> None:
    assert ON_N1.serves(claim(provisioner=SCRATCH, node="n1"))
    assert not ON_N1.serves(claim(provisioner=SCRATCH, node="n2"))
    assert not ON_N1.serves(claim(provisioner=SCRATCH))


@pytest.mark.parametrize("pool", [POOL, ON_N1])
def test_a_volume_is_held_by_the_pool_that_made_it(pool: Pool) -> None:
    made = claims.volume_for(claim(), storage_class(), pool, Path("/volumes/one"))
    others = [POOL, ON_N1, Pool(provisioner=SCRATCH, node="n2")]
    assert [other for other in others if other.owns(made)] == [pool]
    assert made["metadata"]["name"] == f"pvc-{UID}"
    assert claims.node_of(made) == pool.node


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
def test_the_policy_is_the_class_s(policy: str) -> None:
    made = claims.volume_for(claim(), storage_class(policy=policy), POOL, Path("/volumes/one"))
    assert made["spec"]["persistentVolumeReclaimPolicy"] == policy
    assert claims.is_ephemeral(made) == (policy == "Delete")


@pytest.mark.parametrize(
    ("provisioner", "spec", "reason"),
    [
        (SHARED, {"volumeMode": "Block"}, "no block devices"),
        (SHARED, {"selector": {"matchLabels": {"a": "b"}}}, "selector"),
        (SHARED, {"dataSource": {"kind": "PersistentVolumeClaim", "name": "other"}}, "start empty"),
        (SCRATCH, {"accessModes": ["ReadWriteMany"]}, "of one node"),
        (SCRATCH, {"accessModes": ["ReadWriteOnce", "ReadOnlyMany"]}, "of one node"),
    ],
)
def test_what_cannot_be_made_is_refused_with_a_reason(provisioner: str, spec: dict[str, Any], reason: str) -> None:
    assert reason in (claims.refusal(claim(**spec), provisioner) or "")


@pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod"])
def test_shared_takes_every_access_mode(mode: str) -> None:
    assert claims.refusal(claim(accessModes=[mode]), SHARED) is None


@pytest.mark.parametrize(
    ("policy", "phase", "going", "fate"),
    [
        ("Delete", "Bound", False, Fate.KEEP),
        ("Delete", "Bound", True, Fate.KEEP),  # in use: whoever deleted the object has to wait
        ("Delete", "Available", False, Fate.KEEP),
        ("Delete", "Released", False, Fate.REMOVE),
        ("Delete", "Released", True, Fate.REMOVE),
        ("Delete", "Failed", False, Fate.REMOVE),
        ("Delete", "Pending", True, Fate.REMOVE),
        ("Retain", "Released", False, Fate.KEEP),
        ("Retain", "Bound", True, Fate.KEEP),
        ("Retain", "Released", True, Fate.RELEASE),
    ],
)
def test_the_fate_of_a_volume(policy: str, phase: str, going: bool, fate: Fate) -> None:
    assert claims.fate(volume(path="/volumes/one", policy=policy, phase=phase, going=going)) is fate


def test_the_others_finalizers_are_left_and_guarded() -> None:
    patch = claims.without_finalizer(volume(path="/volumes/one"))
    assert patch == {"metadata": {"finalizers": ["kubernetes.io/pv-protection"], "resourceVersion": "8"}}


def test_expansion_brings_both_to_the_size_that_is_asked_for() -> None:
    conditions = [{"type": "Resizing", "status": "True"}, {"type": "Other", "status": "True"}]
    grows = bound(has="1Gi", wants="3Gi", conditions=conditions)
    of_volume, of_claim = claims.expansion(grows, volume(path="/volumes/one"))
    assert of_volume == {"spec": {"capacity": {"storage": "3Gi"}}}
    assert of_claim is not None
    assert of_claim["status"]["capacity"] == {"storage": "3Gi"}
    assert of_claim["status"]["conditions"] == [conditions[1]]


def test_expansion_goes_on_where_it_was_left() -> None:
    """We died between the two patches."""
    half = volume(path="/volumes/one")
    half["spec"]["capacity"]["storage"] = "3Gi"
    of_volume, of_claim = claims.expansion(bound(has="1Gi", wants="3Gi"), half)
    assert of_volume is None
    assert of_claim is not None


@pytest.mark.parametrize("has", ["1Gi", "1073741824", "2Gi"])
def test_nothing_shrinks_or_is_patched_without_need(has: str) -> None:
    assert claims.expansion(bound(has=has, wants="1Gi"), volume(path="/volumes/one")) == (None, None)
