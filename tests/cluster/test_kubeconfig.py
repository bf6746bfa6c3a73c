from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING

import pytest
import yaml

from pinnace.cluster.kubeconfig import merge, unmerge

if TYPE_CHECKING:
    from pathlib import Path


def kubeconfig(name: str) -> dict[str, object]:
    return {
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}"}}],
        "users": [{"name": name, "user": {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "kube" / "config"
    monkeypatch.setenv("KUBECONFIG", f"{path}:/elsewhere")
    return path


def test_a_cluster_is_added_beside_others_and_taken_away_again(config: Path, tmp_path: Path) -> None:
    config.parent.mkdir()
    config.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "preferences": {}, **kubeconfig("mine")}))
    (tmp_path / "new").write_text(json.dumps(kubeconfig("pinnace-a")))
    merge(tmp_path / "new")
    merge(tmp_path / "new")
    merged = yaml.safe_load(config.read_text())
    assert [entry["name"] for entry in merged["clusters"]] == ["mine", "pinnace-a"]
    assert merged["current-context"] == "pinnace-a"
    assert merged["preferences"] == {}
    unmerge("a")
    left = yaml.safe_load(config.read_text())
    assert [entry["name"] for entry in left["contexts"]] == ["mine"]
    assert left["current-context"] == ""


def test_a_file_that_is_not_there_is_made_for_its_owner_alone(config: Path, tmp_path: Path) -> None:
    unmerge("nothing")
    assert not config.exists()
    (tmp_path / "new").write_text(json.dumps(kubeconfig("pinnace-a")))
    merge(tmp_path / "new")
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
