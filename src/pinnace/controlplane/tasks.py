"""Where containerd keeps the bundles of running containers. Apart, because nodes need no more to start."""

from __future__ import annotations

from pathlib import Path

TASKS = Path("/run/containerd/io.containerd.runtime.v2.task/k8s.io")
