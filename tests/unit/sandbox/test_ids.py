"""Subordinate ids: by name, by number, and of a directory service."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

from pinnace.sandbox import ids

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_range_is_found_by_name_or_by_number(tmp_path: Path) -> None:
    file = tmp_path / "subuid"
    file.write_text("other:1:2\nalice:100000:65536\n2001:300000:65536\nbroken\n")
    assert ids.subordinate_ids(str(file), "alice", 5) == (100000, 65536)
    assert ids.subordinate_ids(str(file), "erin.doe", 2001) == (300000, 65536)
    assert ids.subordinate_ids(str(file), "nobody", 6) is None
    assert ids.subordinate_ids(str(tmp_path / "missing"), "alice", 5) is None


def test_what_getsubids_prints_is_read() -> None:
    assert ids.parse_getsubids("0: erin.doe 100000 65536\n1: erin.doe 900000 10\n") == (100000, 65536)
    assert ids.parse_getsubids("Error fetching ranges\n") is None
    assert ids.parse_getsubids("") is None


def test_a_directory_service_is_asked_for_users_that_no_file_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for getsubids, which only a site with such a service has something to say for."""
    for name, said in (("newuidmap", ""), ("newgidmap", ""), ("getsubids", 'echo "0: x $((${#1} * 1000)) 65536"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{said}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(ids, "subordinate_ids", lambda *_: None)
    user = pwd.getpwuid(os.getuid()).pw_name
    assert ids.subordinate_ranges() == ((len(user) * 1000, 65536), (len("-g") * 1000, 65536))


def test_a_user_namespace_may_lack_the_ids_of_a_range() -> None:
    assert ids.contains("0 0 4294967295\n", (100000, 65536))
    assert ids.contains("0 2001 1\n1 100000 65536\n", (1, 65536))
    assert not ids.contains("0 2001 1\n1 100000 65536\n", (1, 65537))
    assert not ids.contains("2001 2001 1\n", (100000, 65536))


def test_a_user_whom_the_host_does_not_know_has_no_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 3_999_999)
    assert ids.subordinate_ranges() is None
