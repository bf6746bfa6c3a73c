"""A real S3 server: Versity's gateway over a directory, built from the Go module proxy once and kept."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from over.conftest import User

MODULE, VERSION = "github.com/versity/versitygw/cmd/versitygw", "v1.8.0"
ACCESS, SECRET = "access-key", "secret-key"
PORT = 7070


def gateway() -> Path:
    """The program; the first build takes minutes."""
    cache = Path(os.environ.get("TESTBED_CACHE") or "/var/cache/testbed") / "tools" / f"versitygw-{VERSION}"
    if not (cache / "versitygw").exists():
        cache.mkdir(parents=True, exist_ok=True)
        variables = os.environ | {"GOBIN": str(cache), "CGO_ENABLED": "0"}
        subprocess.run(["go", "install", f"{MODULE}@{VERSION}"], env=variables, check=True, timeout=1500)
    return cache / "versitygw"


@contextlib.contextmanager
def s3_server(user: User) -> Iterator[str]:
    """The address of a server on the login host, which runs as the user."""
    program = user.home / "versitygw"
    program.write_bytes(gateway().read_bytes())
    program.chmod(0o755)
    user.run("mkdir", "-p", "s3")
    variables = [f"ROOT_ACCESS_KEY={ACCESS}", f"ROOT_SECRET_KEY={SECRET}"]
    argv = ["env", *variables, "/home/alice/versitygw", "--port", f"10.50.0.1:{PORT}", "posix"]
    log = user.home / "s3.log"
    with log.open("w") as file:
        process = user.bed.popen([*argv, "--nometa", "s3"], user=user.name, stdout=file, stderr=file)
    try:
        probe = ["curl", "-s", "-o", "/dev/null", f"http://10.50.0.1:{PORT}/"]
        wait_until("the S3 server", lambda: user.run(*probe, code=None).returncode == 0, limit=60, log=log)
        yield f"10.50.0.1:{PORT}"
    finally:
        process.terminate()
        process.wait(30)
