"""What all tests share."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pinnace.components.store import user_root

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def real_store() -> Path:
    """The user's own store with all real components in it, fetched if need be (minutes, the first time)."""
    subprocess.run([sys.executable, "-m", "pinnace", "fetch"], check=True, timeout=3000)
    return user_root()
