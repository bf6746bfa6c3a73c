"""``python -m pinnace``."""

from pinnace.cli import main

main()
