"""What an agent loads before it forks the processes of its node."""

from __future__ import annotations

import subprocess
import sys

LOADED = """
import sys
from pinnace.node import launch
before = set(sys.modules)
launch.load_shared_modules()
costly = {"ssl", "http.client", "http.server", "pinnace.kube.client"}
print(sorted(costly & before), sorted(costly - set(sys.modules)))
"""


def test_what_several_processes_of_a_node_load_is_loaded_before_they_are_forked() -> None:
    """And nothing of it is loaded where somebody waits: on the head, and on a node for a pod."""
    argv = [sys.executable, "-I", "-c", LOADED]
    assert subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split() == ["[]", "[]"]
