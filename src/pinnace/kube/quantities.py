"""Kubernetes quantities, such as 500Mi or 1.5G, as numbers that can be compared."""

from __future__ import annotations

import re
from decimal import Decimal

_FORM = re.compile(r"([+-]?[0-9.]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def quantity(text: str) -> Decimal:
    """The number that a quantity stands for."""
    found = _FORM.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is not a quantity")
    number, suffix = Decimal(found[1]), found[2] or ""
    if suffix in _BINARY:
        return number * Decimal(1024 ** (_BINARY.index(suffix) + 1))
    if suffix in _DECIMAL:
        return number.scaleb(_DECIMAL[suffix])
    return number.scaleb(int(suffix[1:]))
