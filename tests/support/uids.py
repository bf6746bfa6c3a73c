"""Users with ids of their own for the bed of every pytest-xdist worker. To be imported before ``testbed``.

All beds share one kernel, and with it what that allows a user: inotify instances, for example.
"""

from __future__ import annotations

import os

NUMBER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
os.environ.setdefault("TESTBED_FIRST_UID", str(2001 + 10 * NUMBER))
