"""The commands. The only place that prints and exits."""

from pinnace.cli.app import main

__all__ = ["main"]
