"""Reads JSON that is nested too deeply for Python's parser, without losing what is beside it.

The API server takes objects of 10,000 levels: in fields without a schema, and in ``managedFields`` of any object.
Python's parser raises RecursionError at about 1,000, for the whole list that such an object is in, and so does code
that walks through an object. What Kubernetes itself defines does not come near ``MAX_DEPTH``.
"""

from __future__ import annotations

import json
import re
from typing import Any

MAX_DEPTH = 64  # levels of an object
MAX_DOCUMENT_DEPTH = (
    2 * MAX_DEPTH
)  # levels of a document, in which objects lie a few levels deep; enough to tell which are too deep
TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)  # strings are found because of brackets in them
CONTAINERS = (dict, list)

__all__ = ["MAX_DEPTH", "is_too_deep", "loads"]


def loads(text: str | bytes) -> Any:
    """Parse a document. If it is too deep for that, what is below ``MAX_DOCUMENT_DEPTH`` levels becomes null."""
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads(cut(text if isinstance(text, str) else text.decode(errors="replace")))


def cut(text: str) -> str:
    """A document with null in place of every array and object that is below ``MAX_DOCUMENT_DEPTH`` levels."""
    kept, depth, since = [], 0, 0
    for token in TOKEN.finditer(text):
        if token[0] in {"[", "{"}:
            depth += 1
            if depth == MAX_DOCUMENT_DEPTH + 1:
                kept.append(f"{text[since : token.start()]}null")
        elif token[0] in {"]", "}"}:
            if depth == MAX_DOCUMENT_DEPTH + 1:
                since = token.end()
            depth -= 1
    return "".join([*kept, text[since:]] if depth <= MAX_DOCUMENT_DEPTH else kept)


def is_too_deep(thing: dict[str, Any]) -> bool:
    """Whether an object has more than ``MAX_DEPTH`` levels."""
    level: list[Any] = [thing]
    for _ in range(MAX_DEPTH):
        every = (inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer))
        level = [inner for inner in every if isinstance(inner, CONTAINERS)]
        if not level:
            return False
    return True
