"""What an application can observe of its sockets, as JSON. Runs in pods, with or without native sockets.

python3 -m e2e.sockets.probes HOST PORT GROUP…

HOST has a responder (``responder.py``) at PORT. A GROUP is `connecting`, `accepting` (the responder dials back),
`refused` (nobody listens at HOST:PORT), `filtered` (nobody answers there) or `dead` (nobody has that address).
Addresses are given as what they are: own, the one that was asked for, or another one.
"""

import json
import os
import signal
import sys
import time
from typing import Any

from e2e.sockets import accepting, connecting, failing
from e2e.sockets.observing import PROBES

MODULES = (connecting, accepting, failing)  # which add their probes


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


results: dict[str, Any] = {}
before = descriptors()
for group in sys.argv[3:]:
    for name, function in PROBES[group].items():
        try:
            results[name] = function()
        except Exception as error:  # noqa: BLE001 - it is a result, too
            results[name] = f"{type(error).__name__}: {error}"
        signal.setitimer(signal.ITIMER_REAL, 0)
limit = time.monotonic() + 2
while descriptors() > before and time.monotonic() < limit:  # threads that have been told to end may still do so
    time.sleep(0.05)
results["descriptors"] = descriptors() - before
sys.stdout.write(json.dumps(results, default=str))
sys.stdout.flush()
os._exit(0)
