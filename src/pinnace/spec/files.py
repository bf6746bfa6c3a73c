"""JSON files in the cluster's directory, which hosts allocation: a reader sees a whole file or none, also on NFS."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_json(path: Path, data: object) -> None:
    """Write a file that others watch: it appears whole or not at all."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    with os.fdopen(descriptor, "w") as file:
        json.dump(data, file)
    Path(name).rename(path)


def read_json(path: Path) -> Any:
    """Read such a file; None while it is not there. Listing the directory makes NFS look again."""
    try:
        os.listdir(path.parent)  # noqa: PTH208 - a real opendir, now
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
