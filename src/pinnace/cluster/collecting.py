"""What a workload leaves for its user: the logs of its containers and the events of its cluster, as files."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING

from pinnace.kube.client import API_FAILURES, Api

if TYPE_CHECKING:
    from pathlib import Path


class Collector:
    """Writes to one directory: ``<pod>_<container>.log`` and ``events.json``."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._lock = threading.Lock()

    def line(self, who: str, text: str) -> None:
        """A line of a container, named ``pod/container``; several threads bring them."""
        with self._lock, (self._directory / f"{who.replace('/', '_')}.log").open("a") as log:
            log.write(f"{text}\n")

    def events(self, kubeconfig: Path) -> None:
        """All events, as the API has them. A cluster that has ended has none to give."""
        with contextlib.suppress(*API_FAILURES):
            with contextlib.closing(Api(kubeconfig)) as api:
                events = api.get("/api/v1/events")["items"]
            (self._directory / "events.json").write_text(json.dumps(events, indent=1))
