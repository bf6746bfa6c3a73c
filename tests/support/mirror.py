"""A local HTTP server with the layout of upstream's release servers, for tests of ``pinnace fetch --from release``."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import json
import tarfile
import threading
from functools import partial
from typing import TYPE_CHECKING

from pinnace.components import release

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pinnace.components.manifest import Component


def archive(files: dict[str, bytes]) -> bytes:
    """A gzipped tar as projects publish it: binaries in a directory, beside things that nobody asked for."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
        for name, content in {"README.md": b"not a binary", **files}.items():
            member = tarfile.TarInfo(f"some-directory/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def publish(root: Path, component: Component, arch: str, content: Callable[[str], bytes]) -> None:
    """Write one component's release below ``root``, as its server would serve it."""
    if component.release.image:
        _publish_image(root, component, arch, content)
        return
    for url, binaries in release.urls(component, arch).items():
        name = url.rsplit("/", 1)[1]
        plain = len(binaries) == 1 and not name.endswith(release.ARCHIVES)
        data = content(binaries[0]) if plain else archive({binary: content(binary) for binary in binaries})
        _write(root, url, data)
        checksums = release.checksums_url(component, arch, url)
        _write(root, checksums, f"{hashlib.sha256(data).hexdigest()}  {name}\n".encode())


def _publish_image(root: Path, component: Component, arch: str, content: Callable[[str], bytes]) -> None:
    name, tag = component.expand(component.release.image).rsplit(":", 1)
    base = f"https://{name.replace('/', '/v2/', 1)}"

    def put(kind: str, data: bytes, alias: str = "") -> str:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        _write(root, f"{base}/{kind}/{alias or digest}", data)
        return digest

    layer = put("blobs", archive({binary: content(binary) for binary in component.binaries}))
    manifest = put("manifests", json.dumps({"layers": [{"digest": layer}]}).encode())
    platform = {"os": "linux", "architecture": arch}
    index = {"manifests": [{"digest": manifest, "platform": platform}]}
    put("manifests", json.dumps(index).encode(), alias=tag)


def _write(root: Path, url: str, data: bytes) -> None:
    path = root / url.removeprefix("https://")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_args: object) -> None:
        """Say nothing: pytest shows what matters."""


@contextlib.contextmanager
def serve(root: Path) -> Iterator[str]:
    """Serve a directory on the loopback address; gives the URL."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(root))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(timeout=10)
