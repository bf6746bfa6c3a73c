"""A store of the test's own, and the command run against it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(kw_only=True)
class Pinnace:
    """Runs ``pinnace`` as a user would, with an environment of its own."""

    home: Path
    environment: dict[str, str] = field(default_factory=dict)

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "pinnace", *words]

    def env(self, **more: str) -> dict[str, str]:
        return dict(os.environ) | {"PINNACE_HOME": str(self.home)} | self.environment | more

    def __call__(
        self, *words: str, code: int = 0, timeout: float = 120, **more: str
    ) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            self.argv(*words), env=self.env(**more), capture_output=True, text=True, check=False, timeout=timeout
        )
        assert result.returncode == code, result.stderr
        assert "Traceback" not in result.stderr
        return result

    def popen(self, *words: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv(*words), env=self.env(**more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )


@pytest.fixture
def pinnace(tmp_path: Path) -> Pinnace:
    return Pinnace(home=tmp_path / "home")
