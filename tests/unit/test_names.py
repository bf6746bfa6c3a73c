"""One name, one thing: in the whole tree of the product."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pinnace
from pinnace import errors

SOURCE = Path(pinnace.__file__).parent


def classes() -> list[tuple[str, ast.ClassDef]]:
    """All classes that a module has at its top."""
    return [
        (str(path.relative_to(SOURCE)), node)
        for path in SOURCE.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    ]


def test_no_two_classes_have_one_name() -> None:
    count = Counter(node.name for _, node in classes())
    assert [name for name, times in count.items() if times > 1] == []


def test_all_errors_are_in_one_tree_that_is_drawn_at_its_top() -> None:
    drawn = re.findall(r"[─ ] (\w+Error) ", errors.__doc__ or "")
    assert sorted(drawn) == errors.__all__
    elsewhere = [
        f"{path}: {node.name}"
        for path, node in classes()
        if path != "errors.py" and {base.id for base in node.bases if isinstance(base, ast.Name)} & set(errors.__all__)
    ]
    assert elsewhere == []
