"""Scripts inside a script of ours, run for real."""

from __future__ import annotations

import http.server
import os
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest

from pinnace.bridge import wrapping

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT = 60.0


def run(script: str, directory: Path) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"HOME": str(directory / "home")}
    argv = ["sh", "-c", script]
    return subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=LIMIT, cwd=directory, env=variables
    )


class Store(http.server.BaseHTTPRequestHandler):
    """Objects as S3 has them, for whoever knows their address."""

    objects: dict[str, bytes]

    def do_GET(self) -> None:
        data = self.objects.get(self.path)
        self.send_response(404 if data is None else 200)
        self.end_headers()
        self.wfile.write(data or b"")

    def do_PUT(self) -> None:
        self.objects[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def store() -> Iterator[str]:
    Store.objects = {"/a?signed=%2Fx&y": b"in S3"}
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_what_a_job_brings_and_takes_itself(tmp_path: Path, store: str) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "data").write_text("on the cluster")
    before = [wrapping.put("in/a file", b"it's\0"), wrapping.fetch("in/s3", f"{store}/a?signed=%2Fx&y"),
              wrapping.bring("in/data", str(tmp_path / "site" / "data"))]  # fmt: skip
    after = [wrapping.store("r 1", f"{store}/b?z"), wrapping.keep("r *", "~/kept")]
    inner = "#!/bin/sh\ncat 'in/a file' in/s3 in/data >'r 1'; exit 4\n"
    result = run(wrapping.wrapped(inner, before=before, after=after), tmp_path)
    assert (result.returncode, result.stderr) == (4, "")
    content = b"it's\0in S3on the cluster"
    assert Store.objects["/b?z"] == content
    assert (tmp_path / "home" / "kept" / "r 1").read_bytes() == content


def test_a_job_without_its_input_does_not_begin(tmp_path: Path, store: str) -> None:
    before = [wrapping.fetch("absent", f"{store}/absent")]
    result = run(wrapping.wrapped("#!/bin/sh\necho begun\n", before=before), tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert "there is no input absent" in result.stderr
    assert not (tmp_path / "absent").exists()
