"""Trees of files, for those who have to remove them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

DEPTH = 1200  # Python has a thousand frames, and no path is longer than 4096 bytes


def make_deep(top: Path, depth: int = DEPTH) -> None:
    """Directories in one another, with a file in the last. As a pod makes them: by going into each."""
    here = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("deep", dir_fd=here)
        below = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=here))
    os.close(here)
