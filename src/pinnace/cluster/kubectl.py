"""kubectl of a cluster's own version, with the cluster's kubeconfig."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pinnace.cluster.kubeconfig import kubectl_environment
from pinnace.errors import ClusterError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Kubectl:
    """Upstream's binary at ``path``, for the cluster of a kubeconfig."""

    path: str
    kubeconfig: Path

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | kubectl_environment(self.kubeconfig)

    def run(
        self, *args: str, stdin: str = "", check: bool = True, timeout: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl and give what it printed. With ``check``, a failure is a ClusterError in kubectl's own words."""
        result = subprocess.run(
            [self.path, *args],
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
        if check and result.returncode:
            raise ClusterError(f"kubectl {shlex.join(args)}: {result.stderr.strip()}")
        return result

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Start kubectl in a session of its own, without output but for errors: Ctrl-C is the caller's to handle."""
        return subprocess.Popen(
            [self.path, *args],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
