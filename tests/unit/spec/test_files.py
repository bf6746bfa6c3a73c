"""Files that hosts share, as far as one host can tell; tests/e2e/test_sites.py has hosts that remember what was not."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pinnace.spec import appearance, read_json, write_json
from pinnace.spec.files import is_listed

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_file_is_read_once_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "0.json"
    assert read_json(path) is None
    assert read_json(tmp_path / "missing" / "0.json") is None
    write_json(path, {"state": "running"})
    assert read_json(path) == {"state": "running"}


def test_an_appearance_is_noticed_and_not_asked_for_again(tmp_path: Path) -> None:
    path = tmp_path / "certificate"
    look = appearance(path)
    assert not look()
    path.touch()
    assert look()
    path.unlink()
    assert look()


def test_who_looks_for_a_file_that_is_removed_meanwhile_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", lambda _path: ["0.json"])
        assert read_json(tmp_path / "0.json") is None
        assert not is_listed(tmp_path / "0.json")
    assert list(tmp_path.iterdir()) == []
