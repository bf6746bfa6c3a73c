from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from pinnace.components.manifest import manifest
from pinnace.components.store import ComponentState, ComponentStore, ComponentStores, Origin
from pinnace.errors import ChecksumError, ComponentError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Source = Callable[[Path], tuple[Origin, str]]

COMPONENT = manifest()["containerd"]


def give(content: bytes = b"binary") -> Source:
    def source(target: Path) -> tuple[Origin, str]:
        for binary in COMPONENT.binaries:
            (target / binary).write_bytes(content)
        return Origin.BUILD, "go1.2.3"

    return source


@pytest.fixture
def store(tmp_path: Path) -> ComponentStore:
    return ComponentStore(tmp_path / "components", "amd64")


def install(store: ComponentStore, source: Source) -> None:
    with store.lock(COMPONENT, lambda _holder: None):
        store.install(COMPONENT, source)


def test_what_is_installed_is_found(store: ComponentStore) -> None:
    assert store.inspect(COMPONENT).state is ComponentState.MISSING
    install(store, give())
    entry = store.inspect(COMPONENT, deep=True)
    assert entry.state is ComponentState.INSTALLED
    assert entry.path == store.root / "containerd" / COMPONENT.version / "amd64"
    assert entry.record
    assert (entry.record.origin, entry.record.detail) == (Origin.BUILD, "go1.2.3")
    assert ComponentStores(store).binary(COMPONENT, "ctr").read_bytes() == b"binary"
    assert not os.access(entry.path / "ctr", os.W_OK) or os.geteuid() == 0


def test_a_source_that_fails_leaves_nothing(store: ComponentStore) -> None:
    def broken(target: Path) -> tuple[Origin, str]:
        (target / "ctr").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install(store, broken)
    assert store.inspect(COMPONENT).state is ComponentState.MISSING
    assert [path.name for path in (store.root / "containerd").iterdir()] == [".lock"]


def test_a_source_that_forgets_a_binary_is_refused(store: ComponentStore) -> None:
    with pytest.raises(ComponentError, match="did not give containerd"):
        install(store, lambda _target: (Origin.RELEASE, ""))


def test_what_a_killed_process_left_is_swept_by_the_next(store: ComponentStore) -> None:
    leftover = store.root / "containerd" / ".staging-dead"
    leftover.mkdir(parents=True)
    (leftover / "ctr").write_bytes(b"half")
    install(store, give())
    assert not leftover.exists()
    assert store.inspect(COMPONENT).state is ComponentState.INSTALLED


@pytest.mark.parametrize("deep", [False, True])
def test_a_changed_byte_is_noticed(store: ComponentStore, *, deep: bool) -> None:
    install(store, give())
    path = store.inspect(COMPONENT).path / "ctr"
    path.chmod(0o755)
    path.write_bytes(b"binarz")
    entry = store.inspect(COMPONENT, deep=deep)
    assert entry.state is ComponentState.DAMAGED
    assert "ctr does not have its checksum" in entry.reason
    with pytest.raises(ChecksumError, match="damaged"):
        ComponentStores(store).binary(COMPONENT, "ctr")


def test_a_changed_byte_behind_an_unchanged_time_is_found_by_a_deep_look(store: ComponentStore) -> None:
    install(store, give())
    path = store.inspect(COMPONENT).path / "ctr"
    before = path.stat()
    path.chmod(0o755)
    path.write_bytes(b"binarz")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    path.chmod(0o555)
    assert store.inspect(COMPONENT, deep=True).state is ComponentState.DAMAGED


def test_a_copied_store_is_still_valid(store: ComponentStore) -> None:
    install(store, give())
    path = store.inspect(COMPONENT).path / "ctr"
    os.utime(path)
    assert store.inspect(COMPONENT).state is ComponentState.INSTALLED


def test_a_binary_that_others_may_write_is_refused(store: ComponentStore) -> None:
    install(store, give())
    (store.inspect(COMPONENT).path / "ctr").chmod(0o777)
    assert "can be written by other users" in store.inspect(COMPONENT).reason


def test_a_damaged_record_is_damage_and_is_replaced(store: ComponentStore) -> None:
    install(store, give())
    (store.inspect(COMPONENT).path / "record.json").write_text("{")
    assert store.inspect(COMPONENT).state is ComponentState.DAMAGED
    install(store, give(b"newer"))
    assert ComponentStores(store).binary(COMPONENT, "ctr").read_bytes() == b"newer"


def test_the_site_store_serves_what_the_user_does_not_have(store: ComponentStore, tmp_path: Path) -> None:
    site = ComponentStore(tmp_path / "site", "amd64")
    install(site, give(b"site"))
    stores = ComponentStores(store, site)
    assert stores.binary(COMPONENT, "ctr").read_bytes() == b"site"
    install(store, give(b"mine"))
    assert stores.binary(COMPONENT, "ctr").read_bytes() == b"mine"


def test_what_is_missing_says_how_to_get_it(store: ComponentStore) -> None:
    with pytest.raises(ComponentError, match="not in the store") as caught:
        ComponentStores(store).binary(COMPONENT, "ctr")
    assert "pinnace fetch" in caught.value.hint


def test_the_second_waits_for_the_first_and_is_told_for_whom(store: ComponentStore) -> None:
    entered, leave = threading.Event(), threading.Event()
    told: list[str] = []

    def first() -> None:
        with store.lock(COMPONENT, told.append):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait(10)

    def waiting(holder: str) -> None:
        told.append(holder)
        leave.set()

    with store.lock(COMPONENT, waiting):
        assert told == [f"process {os.getpid()} on {os.uname().nodename}"]
    thread.join(10)
