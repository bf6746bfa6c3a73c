"""Sizes, as sbatch takes them and sacct prints them."""

from __future__ import annotations

import pytest

from pinnace.slurm.sizes import parse_bytes, parse_mebibytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("100", 100), ("100M", 100), ("2G", 2048), ("1T", 1 << 20), ("2048K", 2), ("5MB", 5), ("8GB", 8192), ("8gb", 8192),
     ("4096m", 4096), ("1500K", 2), ("1P", 1 << 30), ("1.5G", 1536), ("0", 0)],
)  # fmt: skip
def test_what_sbatch_takes_becomes_mebibytes(text: str, size: int) -> None:
    assert parse_mebibytes(text) == size


@pytest.mark.parametrize(("text", "size"), [("", 0), ("0", 0), ("3K", 3072), ("3.50M", 3670016), ("1.5G", 3 << 29)])
def test_what_sacct_prints_becomes_bytes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "8X", "8GX", "G", "-1", "1e3", "inf", "1..5", "8 G", "²", "9" * 5000])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_mebibytes(text)
