"""Users with ids of their own for the bed of every pytest-xdist worker. To be imported before ``testbed``.

All beds share one kernel, and with it what that allows a user: inotify instances, for example. Workers inherit the
environment of the process that starts them, so that one's is left as it is.
"""

from __future__ import annotations

import os

if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    first = int(os.environ.get("TESTBED_FIRST_UID", "2001"))
    os.environ["TESTBED_FIRST_UID"] = str(first + 10 * int(worker.removeprefix("gw")))
