"""The Debian packages that the bed runs: installed when they are missing, without any of their daemons started.

Hosts have the machine's, or those of a root of another release (``testbed.roots``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.errors import PackageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["OF_MACHINE", "PACKAGES", "deny_daemons", "ensure", "install_command", "missing", "run", "versions"]

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
    "curl",
    "iproute2",
    "iperf3",
    "nftables",
    "openssh-client",
    "openssh-server",  # for whoever comes from outside; tests start it
    "libfaketime",  # a host whose clock is off
    "libpmix-dev",  # what `srun --mpi=pmix` loads
    "libnss-extrausers",  # in place of a directory service
    "procps",
    "python3",
    "python3-venv",
    "tcsh",
)
OF_MACHINE = ("iproute2",)  # what the bed itself needs, whatever the hosts have
POLICY = Path("/usr/sbin/policy-rc.d")
DENY = "#!/bin/sh\n# Written by testbed while it installs packages: none of their daemons may start.\nexit 101\n"
INSTALL_LIMIT = 900.0


def versions(names: Sequence[str], root: Path = Path("/")) -> dict[str, str]:
    """Those of the packages that are installed below a root, with their versions."""
    where = f"--admindir={root / 'var/lib/dpkg'}"
    command = ["dpkg-query", where, "-W", "-f", "${binary:Package} ${db:Status-Status} ${Version}\n", *names]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        raise PackageError("This is no Debian: there is no dpkg-query.") from None
    return parse_versions(result.stdout)


def parse_versions(text: str) -> dict[str, str]:
    rows = (line.split() for line in text.splitlines())
    return {row[0].split(":")[0]: row[2] for row in rows if len(row) == 3 and row[1] == "installed"}


def missing(names: Sequence[str], installed: dict[str, str]) -> list[str]:
    return [name for name in names if name not in installed]


def install_command(names: Sequence[str]) -> list[str]:
    return ["apt-get", "install", "--yes", "--no-install-recommends", *names]


def ensure(wanted: Sequence[str]) -> dict[str, str]:
    """Install what is missing, with a fresh list of packages only if the one at hand does not do. Returns versions."""
    names = missing(wanted, versions(wanted))
    if names:
        if shutil.which("apt-get") is None:
            raise PackageError(f"Packages are missing, and there is no apt-get: {' '.join(names)}.")
        with no_daemons():
            if run(install_command(names)).returncode:
                update = run(["apt-get", "update"])
                result = run(install_command(names))
                if result.returncode:
                    raise PackageError(
                        f"apt-get cannot install {' '.join(names)}:\n{end(update)}{end(result)}",
                        hint="The packages are those of Debian 12: do /etc/apt/sources.list* point there?",
                    )
        names = missing(wanted, versions(wanted))
        if names:
            raise PackageError(f"apt-get says that all is well, but these are not installed: {' '.join(names)}.")
    return versions(wanted)


def run(command: list[str], *, limit: float = INSTALL_LIMIT) -> subprocess.CompletedProcess[str]:
    """A command that installs packages, with its output in one text."""
    variables = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    try:
        return subprocess.run(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PackageError(f"{command[0]} did not end in {limit:.0f} s: {' '.join(command)}.") from None


def end(result: subprocess.CompletedProcess[str]) -> str:
    return "\n".join(result.stdout.splitlines()[-8:]) + "\n" if result.returncode else ""


def deny_daemons(root: Path) -> None:
    """Have invoke-rc.d refuse to start anything below this root."""
    policy = root / POLICY.relative_to("/")
    policy.write_text(DENY)
    policy.chmod(0o755)


@contextmanager
def no_daemons() -> Iterator[None]:
    """Have invoke-rc.d refuse to start anything; a policy that the machine has already is left alone."""
    if POLICY.exists() and POLICY.read_text() != DENY:
        yield
        return
    deny_daemons(Path("/"))
    try:
        yield
    finally:
        POLICY.unlink()
