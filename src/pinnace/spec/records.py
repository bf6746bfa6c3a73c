"""Where the other nodes are, as their agents have written it into the cluster's directory."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LIST_INTERVAL = 0.2  # seconds between looks at the directory, however many nodes are looked for


class Records:
    """``nodes/N.json`` of all nodes. A pod may send to every address; the site's file server shall not feel it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._names: frozenset[str] = frozenset()
        self._listed = -LIST_INTERVAL
        self._lock = threading.Lock()

    def find(self, index: int) -> tuple[str, int] | None:
        """The address and port of a node's links; None if it has not said, or has ended."""
        if f"{index}.json" not in self._list():
            return None
        try:
            about = json.loads((self._directory / f"{index}.json").read_text())
        except FileNotFoundError:
            return None
        return (about["address"], about["links"]) if "links" in about else None

    def _list(self) -> frozenset[str]:
        with self._lock:
            if time.monotonic() - self._listed >= LIST_INTERVAL:
                self._names = frozenset(os.listdir(self._directory))  # noqa: PTH208 - a real opendir, for NFS
                self._listed = time.monotonic()
            return self._names
