from __future__ import annotations

import json
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from pinnace.cluster.kubeconfig import merge, unmerge
from pinnace.errors import ClusterError, UnsafePathError

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


EDIT = """
import sys
from pathlib import Path
from pinnace.cluster.kubeconfig import merge, unmerge
for number in range(10):
    merge(Path(sys.argv[1]) / f"{sys.argv[2]}-{number}")
for number in range(0, 10, 2):
    unmerge(f"{sys.argv[2]}-{number}")
"""


def test_no_context_is_lost_where_several_commands_change_the_file_at_once(config: Path, tmp_path: Path) -> None:
    names = "abcd"
    for name in names:
        for number in range(10):
            (tmp_path / f"{name}-{number}").write_text(json.dumps(kubeconfig(f"pinnace-{name}-{number}")))
    edits = [subprocess.Popen([sys.executable, "-c", EDIT, str(tmp_path), name]) for name in names]
    assert [edit.wait(60) for edit in edits] == [0] * len(names)
    merged = yaml.safe_load(config.read_text())
    expected = {f"pinnace-{name}-{number}" for name in names for number in range(1, 10, 2)}
    for kind in ("clusters", "users", "contexts"):
        assert {entry["name"] for entry in merged[kind]} == expected
    assert [path.name for path in config.parent.iterdir()] == ["config"], "nothing else is left"


def test_a_lock_that_somebody_has_left_is_waited_for_and_named(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new").write_text(json.dumps(kubeconfig("pinnace-a")))
    merge(tmp_path / "new")
    before = config.read_bytes()
    lock = config.with_name("config.lock")
    lock.touch(mode=0)  # as kubectl makes it
    monkeypatch.setattr("pinnace.cluster.kubeconfig.LOCK_LIMIT", 0.2)
    with pytest.raises(ClusterError, match=r"config\.lock was there") as caught:
        unmerge("a")
    assert f"rm {lock}" in caught.value.hint
    assert config.read_bytes() == before
    lock.unlink()
    unmerge("a")
    assert not lock.exists()


def test_a_link_stays_one_and_the_file_behind_it_is_changed(config: Path, tmp_path: Path) -> None:
    config.parent.mkdir()
    real = tmp_path / "dotfiles" / "kubeconfig"
    real.parent.mkdir()
    real.write_text(yaml.safe_dump(kubeconfig("mine")))
    config.symlink_to("../dotfiles/kubeconfig")
    (tmp_path / "new").write_text(json.dumps(kubeconfig("pinnace-a")))
    merge(tmp_path / "new")
    assert config.is_symlink()
    assert [entry["name"] for entry in yaml.safe_load(real.read_text())["users"]] == ["mine", "pinnace-a"]
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    assert [path.name for path in real.parent.iterdir()] == ["kubeconfig"]


def test_a_home_that_is_a_link_has_one_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "people/erin").mkdir(parents=True)
    (tmp_path / "erin").symlink_to("people/erin")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "erin/.kube/config"))
    (tmp_path / "new").write_text(json.dumps(kubeconfig("pinnace-a")))
    merge(tmp_path / "new")
    assert [path.name for path in (tmp_path / "people/erin/.kube").iterdir()] == ["config"]


@pytest.mark.parametrize("where", ["file", "directory"])
def test_a_file_that_others_can_change_is_not_used(config: Path, tmp_path: Path, where: str) -> None:
    """Who can write to it can let kubectl run any program."""
    config.parent.mkdir()
    config.write_text(yaml.safe_dump(kubeconfig("mine")))
    (config if where == "file" else config.parent).chmod(0o777)
    before = config.read_bytes()
    (tmp_path / "new").write_text(json.dumps(kubeconfig("pinnace-a")))
    with pytest.raises(UnsafePathError, match="your kubeconfig") as caught:
        merge(tmp_path / "new")
    assert "KUBECONFIG" in caught.value.hint
    assert config.read_bytes() == before


@pytest.mark.parametrize("content", ["a: [", "- 1", "clusters: [{}]", "clusters: 7", "clusters: [7]", "\x00"])
def test_what_is_no_kubeconfig_stays_as_it_is(config: Path, tmp_path: Path, content: str) -> None:
    config.parent.mkdir()
    config.write_text(content)
    (tmp_path / "new").write_text(json.dumps(kubeconfig("pinnace-a")))
    with pytest.raises(ClusterError):
        merge(tmp_path / "new")
    assert config.read_text() == content
    assert [path.name for path in config.parent.iterdir()] == ["config"]
