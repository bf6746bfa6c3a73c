"""Pods that wait, and the Slurm jobs that serve them (see docs/pods-as-jobs.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinnace.interpreter import python_argv

if TYPE_CHECKING:
    from pathlib import Path


def provisioner_argv(python: str, directory: Path) -> list[str]:
    """The command of a cluster's provisioner; it runs on the head's host, outside the fabric."""
    return python_argv("pinnace.podjobs.controller", "--cluster", str(directory), python=python)
