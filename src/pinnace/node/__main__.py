"""``python -m pinnace.node``: the agent; and before all else, whoever makes its node's certificates."""

from __future__ import annotations

import os
import sys

from pinnace.node.certificates import Certificates, will_be_wanted


def main(argv: list[str]) -> int:
    certificates = Certificates() if will_be_wanted(argv, os.environ) else None
    from pinnace.node import launch  # noqa: PLC0415 - while the other one loads

    return launch.main(argv, certificates)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
