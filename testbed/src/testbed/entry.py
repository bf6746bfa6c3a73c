"""How to get into a host: what ``testbed.enter`` is told, and how it is started."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

__all__ = ["Entry"]

SOURCE = Path(__file__).parents[1]
START = f"import sys; sys.path.append({str(SOURCE)!r}); from testbed.enter import run; run()"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Where to go, as whom. ``cgroups`` are the machine's paths of the host's groups."""

    host: str
    pid: int
    start_time: int
    cgroups: tuple[str, ...]
    user: str
    cwd: str = ""
    log: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)  # by the names of the resource module

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Entry:
        data = json.loads(text)
        return cls(**data | {"cgroups": tuple(data["cgroups"])})

    def argv(self) -> list[str]:
        """What runs a command there, if that is added: without ``site`` and ``runpy``, which take long."""
        return [sys.executable, "-I", "-S", "-c", START, self.to_json()]
