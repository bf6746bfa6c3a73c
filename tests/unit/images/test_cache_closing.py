"""What is kept in containerd from one cluster to the next; with a real one in ``tests/e2e/test_cache.py``."""

from __future__ import annotations

import signal
import subprocess
import sys

from pinnace.images import cache_closing
from pinnace.images.cache import MAX_AGE

NOW = 1_800_000_000.0
LISTING = [
    "DIGEST\tSIZE\tAGE\tLABELS",
    "sha256:aa\t1kB\t3 days\tcontainerd.io/gc.ref.content.config=sha256:bb,containerd.io/gc.root=1799999000",
    "sha256:bb\t1kB\t3 days\tcontainerd.io/gc.ref.snapshot.overlayfs=sha256:cc",
    "sha256:cc\t1kB\t3 days\t-",
]


def test_labels_tell_when_an_image_was_last_used() -> None:
    assert cache_closing.last_uses(LISTING) == {"sha256:aa": 1799999000.0}


def test_images_are_kept_while_they_are_used_and_a_while_longer() -> None:
    before = {"today": NOW - 60, "yesterday": NOW - 90_000, "old": NOW - MAX_AGE - 1, "old but used": NOW - MAX_AGE - 1}
    written = cache_closing.labels({"new", "today", "old but used"}, before, NOW)
    assert written == {"new": "1800000000", "old but used": "1800000000", "old": ""}


def test_a_process_is_waited_for_until_it_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        cache_closing.end(process.pid, signal.SIGTERM)
        assert process.wait(0) == -signal.SIGTERM
