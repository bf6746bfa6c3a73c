"""A real S3 server, which checks signatures: rclone's, over a directory, from PyPI with the developers' tools."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.conftest import User

ACCESS, SECRET = "access-key", "secret-key"
ADDRESS = "10.50.0.1:7070"


@contextlib.contextmanager
def s3_server(user: User) -> Iterator[str]:
    """The address of a server on the login host, which runs as the user."""
    program = user.home / "rclone"
    program.write_bytes((Path(sys.executable).parent / "rclone").read_bytes())
    program.chmod(0o755)
    user.run("mkdir", "-p", "s3")
    argv = ["env", f'RCLONE_AUTH_KEY="{ACCESS},{SECRET}"', "/home/alice/rclone", "serve", "s3", "--addr", ADDRESS, "s3"]
    log = user.home / "s3.log"
    with log.open("w") as file:
        process = user.bed.popen(argv, user=user.name, stdout=file, stderr=file)
    try:
        probe = ["curl", "-s", "-o", "/dev/null", f"http://{ADDRESS}/"]
        wait_until("the S3 server", lambda: user.run(*probe, code=None).returncode == 0, limit=60, log=log)
        yield ADDRESS
    finally:
        process.terminate()
        process.wait(30)
