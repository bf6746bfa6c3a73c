"""What the wrapper of runc does to a bundle, and what it leaves alone."""

from __future__ import annotations

from typing import Any

from pinnace.node.runtime import is_read_only, keeping_read_only, without_cgroups


def bind(source: str, *options: str) -> dict[str, Any]:
    return {"destination": "/there", "type": "bind", "source": source, "options": ["rbind", "rprivate", *options]}


def test_only_what_concerns_cgroups_is_taken_out() -> None:
    config = {"linux": {"cgroupsPath": "/x", "resources": {}, "namespaces": [{"type": "pid"}]}, "process": {}}
    assert without_cgroups(config) == {"linux": {"namespaces": [{"type": "pid"}]}, "process": {}}


def test_a_volume_is_no_more_writable_than_what_it_comes_from() -> None:
    proc = {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid"]}
    config = {"mounts": [bind("/software", "rw"), bind("/home", "rw"), bind("/software", "ro"), proc]}
    mended = keeping_read_only(config, lambda path: path == "/software")
    assert mended["mounts"] == [bind("/software"), bind("/home", "rw"), bind("/software", "ro"), proc]


def test_a_path_that_is_not_there_is_left_to_runc() -> None:
    assert not is_read_only("/no/such/path")
    assert not is_read_only("/tmp")
