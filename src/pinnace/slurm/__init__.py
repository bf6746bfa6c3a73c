"""Slurm's own words: its commands, their options, the states of jobs."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def host_name(environment: Mapping[str, str]) -> str:
    """What Slurm calls this host, to whoever runs in a job; without Slurm, its own name."""
    return environment.get("SLURMD_NODENAME") or socket.gethostname()
