"""Running an unpacked image as a container would, with no more than ``unshare`` and ``chroot``."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.images.oci import PATH

if TYPE_CHECKING:
    from pathlib import Path

# Mounts and network are the container's own, so they vanish with it. The command replaces the shell and is PID 1. The
# shell is bash, since dash would drop variables whose names have dots.
SETUP = """
set -eu
root=$1 user=$2
shift 2
mkdir -p "$root/dev" "$root/proc" "$root/tmp"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
ip link set lo up
exec chroot --userspec="$user" "$root" "$@"
"""


@dataclass(frozen=True, kw_only=True)
class Container:
    """An image's files, in a directory."""

    root: Path

    def argv(self, *command: str, user: str = "0:0") -> list[str]:
        spaces = ["unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        return [*spaces, "bash", "-c", SETUP, "bash", str(self.root), user, *command]

    def run(self, *command: str, user: str = "0:0", env: dict[str, str] | None = None) -> str:
        """Return what a command writes to both its outputs; fail with it."""
        done = subprocess.run(
            self.argv(*command, user=user),
            env={"PATH": PATH, "HOME": "/"} | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout
