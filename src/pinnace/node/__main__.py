"""``python -m pinnace.node``: the agent; and before all else, whoever makes its node's certificates."""

from __future__ import annotations

import os
import sys

from pinnace.node.certificates import Certificates, will_be_wanted
from pinnace.timeline.recorder import MarkEvent, Recorder, StepName, process_began


def main(argv: list[str]) -> int:
    timeline = Recorder()
    began = process_began()
    timeline.mark(StepName.AGENT, MarkEvent.BEGIN, at=began)
    timeline.mark(StepName.AGENT_LOAD, MarkEvent.BEGIN, at=began)
    certificates = Certificates() if will_be_wanted(argv, os.environ) else None
    from pinnace.node import launch  # noqa: PLC0415 - while the other one loads

    timeline.mark(StepName.AGENT_LOAD, MarkEvent.END)
    return launch.main(argv, certificates, timeline)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
