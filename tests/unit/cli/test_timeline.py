"""The timeline of a run: what becomes of it does not change what it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinnace.cli.timeline import report
from pinnace.cluster.cluster import Cluster

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_timeline_that_cannot_be_saved_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PINNACE_HOME", str(tmp_path / "home"))
    (tmp_path / "file").touch()
    cluster = Cluster("mine", listen="", interface="", ports="")
    report(cluster, tmp_path / "file")
    assert "the timeline cannot be saved: " in capsys.readouterr().err
    report(cluster, tmp_path / "made")
    assert "Saved as " in capsys.readouterr().err
