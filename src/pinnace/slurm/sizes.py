"""Sizes as Slurm writes them and takes them: ``500``, ``8G``, ``8GB``, ``4096M``, ``1.5G``."""

from __future__ import annotations

import math
import re
from fractions import Fraction

SIZE = re.compile(r"(?P<number>[0-9]{1,18}(?:\.[0-9]{0,18})?)(?P<unit>[KMGTP]?)B?", re.IGNORECASE)
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}


def parse_size(text: str, *, default_unit: str = "") -> Fraction:
    """Bytes. Without a unit it is of the default one: sbatch counts in mebibytes, sacct in bytes."""
    found = SIZE.fullmatch(text.strip())
    if not found:
        raise ValueError("not a size of memory")
    return Fraction(found["number"].rstrip(".")) * UNITS[found["unit"].upper() or default_unit]


def parse_mebibytes(text: str) -> int:
    """Mebibytes of a size as sbatch takes it. Rounded up, as Slurm does."""
    return math.ceil(parse_size(text, default_unit="M") / UNITS["M"])


def parse_bytes(text: str) -> int:
    """Bytes of a size as sacct prints it; 0 for none."""
    return int(parse_size(text)) if text.strip() else 0
