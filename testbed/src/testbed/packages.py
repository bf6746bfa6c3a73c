"""The Debian packages that the bed runs: installed when they are missing, without any of their daemons started."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.errors import PackageError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PACKAGES", "ensure", "install_command", "missing", "versions"]

PACKAGES = (
    "slurmctld",
    "slurmd",
    "slurmdbd",
    "slurmrestd",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "slurm-wlm-mysql-plugin",
    "slurm-wlm-jwt-plugin",
    "munge",
    "mariadb-server-core",
    "mariadb-client-core",
    "uidmap",
    "iproute2",
    "iperf3",
    "nftables",
    "libfaketime",  # a host whose clock is off
    "libpmix-dev",  # what `srun --mpi=pmix` loads
    "procps",
    "python3",
    "python3-venv",
)
POLICY = Path("/usr/sbin/policy-rc.d")
DENY = "#!/bin/sh\n# Written by testbed while it installs packages: none of their daemons may start.\nexit 101\n"
INSTALL_LIMIT = 900.0


def versions() -> dict[str, str]:
    """The installed ones of the packages, with their versions."""
    command = ["dpkg-query", "-W", "-f", "${binary:Package} ${db:Status-Status} ${Version}\n", *PACKAGES]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        raise PackageError("This is no Debian: there is no dpkg-query.") from None
    return parse_versions(result.stdout)


def parse_versions(text: str) -> dict[str, str]:
    rows = (line.split() for line in text.splitlines())
    return {row[0].split(":")[0]: row[2] for row in rows if len(row) == 3 and row[1] == "installed"}


def missing(installed: dict[str, str]) -> list[str]:
    return [name for name in PACKAGES if name not in installed]


def install_command(names: list[str]) -> list[str]:
    return ["apt-get", "install", "--yes", "--no-install-recommends", *names]


def ensure() -> dict[str, str]:
    """Install what is missing, with a fresh list of packages only if the one at hand does not do. Returns versions."""
    names = missing(versions())
    if names:
        if shutil.which("apt-get") is None:
            raise PackageError(f"Packages are missing, and there is no apt-get: {' '.join(names)}.")
        with no_daemons():
            if apt(install_command(names)).returncode:
                update = apt(["apt-get", "update"])
                result = apt(install_command(names))
                if result.returncode:
                    raise PackageError(
                        f"apt-get cannot install {' '.join(names)}:\n{end(update)}{end(result)}",
                        hint="The packages are those of Debian 12: do /etc/apt/sources.list* point there?",
                    )
        names = missing(versions())
        if names:
            raise PackageError(f"apt-get says that all is well, but these are not installed: {' '.join(names)}.")
    return versions()


def apt(command: list[str]) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    try:
        return subprocess.run(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PackageError(f"{' '.join(command)} did not end in {INSTALL_LIMIT:.0f} s.") from None


def end(result: subprocess.CompletedProcess[str]) -> str:
    return "\n".join(result.stdout.splitlines()[-8:]) + "\n" if result.returncode else ""


@contextmanager
def no_daemons() -> Iterator[None]:
    """Have invoke-rc.d refuse to start anything; a policy that the machine has already is left alone."""
    if POLICY.exists() and POLICY.read_text() != DENY:
        yield
        return
    POLICY.write_text(DENY)
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()
