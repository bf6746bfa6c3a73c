"""Checks of what tenants and servers say, before it goes into a path, a command line, a log or a status."""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import quote

from pinnace.errors import UsageError

__all__ = ["api_name", "is_plain", "plain", "printable", "variable_name"]

NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")  # RFC 1123, as Kubernetes has it for most objects
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
# Control, format and surrogate characters, and the separators at which str.splitlines() ends a line.
UNPRINTABLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
SHOWN = 1000  # characters of what somebody else said


def is_plain(text: str) -> bool:
    """Whether a text is one line of printable characters, for everybody who may read it."""
    return not any(unicodedata.category(character) in UNPRINTABLE for character in text)


def plain(what: str, text: str, *, most: int = 1024) -> str:
    """The text itself, if it is one printable line that is not too long.

    For all that goes into a command line, a job's name or its comment.
    """
    if len(text) > most:
        raise UsageError(f"{what} is longer than {most} characters")
    if not is_plain(text):
        raise UsageError(
            f"{what} has a character that cannot be printed (a control character or a line end): "
            f"{printable(repr(text), 80)}"
        )
    return text


def printable(text: str, most: int = SHOWN) -> str:
    """What somebody else said, as one line of printable characters that is not too long."""
    cut = text[: 4 * most]
    clean = "".join(" " if unicodedata.category(character) in UNPRINTABLE else character for character in cut)
    words = " ".join(clean.split())
    return words if len(words) <= most else f"{words[: most - 1]}…"


def api_name(name: str) -> str:
    """A name of an object, for a path of the API: it cannot lead to another kind, namespace or query."""
    if not NAME.fullmatch(name):
        raise UsageError(f"{printable(repr(name), 80)} is no name of an object")
    return quote(name, safe="")


def variable_name(name: str) -> str:
    """A name that every shell takes for an environment variable."""
    if not VARIABLE.fullmatch(name):
        raise UsageError(f"{printable(repr(name), 80)} is no name of an environment variable")
    return name
