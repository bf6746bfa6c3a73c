"""Erasing deleted entries from a database. ``tests/e2e/test_cache.py`` has a real one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pinnace.images import boltdb
from unit.images.bolts import DELETED, KEPT, PAGE, database, meta

if TYPE_CHECKING:
    from pathlib import Path


def test_what_was_deleted_is_erased_and_nothing_else(tmp_path: Path) -> None:
    path, before = tmp_path / "meta.db", database()
    path.write_bytes(before)
    assert DELETED in before
    assert boltdb.erase_free_pages(path) == 2
    after = path.read_bytes()
    assert DELETED not in after
    assert KEPT in after
    assert after[: 6 * PAGE] == before[: 6 * PAGE]
    assert len(after) == len(before)
    assert boltdb.erase_free_pages(path) == 2, "it can be done again"


def test_the_last_complete_transaction_counts() -> None:
    before = database()
    assert boltdb.read_meta(before).transaction == 8
    torn = before[: boltdb.HEADER.size + 40] + b"torn" + before[boltdb.HEADER.size + 44 :]
    assert boltdb.read_meta(torn).transaction == 7


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\0" * 9999,
        database()[: 3 * PAGE],
        meta(0, root=99, end=7, transaction=8) + database()[PAGE:],
        meta(0, root=1, end=7, transaction=8) + database()[PAGE:],
        database()[: 3 * PAGE] + database()[2 * PAGE : 3 * PAGE] + database()[4 * PAGE :],
    ],
    ids=["empty", "zeros", "cut", "root outside", "root is no tree", "pages exchanged"],
)
def test_what_is_not_understood_is_not_touched(tmp_path: Path, damaged: bytes) -> None:
    path = tmp_path / "meta.db"
    path.write_bytes(damaged)
    with pytest.raises(boltdb.BoltError):
        boltdb.erase_free_pages(path)
    assert path.read_bytes() == damaged
