"""``python -m testbed`` is the command ``testbed``."""

from __future__ import annotations

from testbed.cli import main

main()
