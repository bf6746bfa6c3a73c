"""Downloads over HTTPS: the one place where a URL of upstream's is opened.

A site without internet can mirror what upstream publishes: with ``PINNACE_RELEASE_MIRROR=https://mirror.example``,
``https://dl.k8s.io/a/b`` is read from ``https://mirror.example/dl.k8s.io/a/b``.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING

from pinnace import https
from pinnace.errors import ChecksumError, ComponentError, DownloadUnreachableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

CHUNK = 1 << 20
STALL = 30.0  # seconds without a byte
ATTEMPTS = 3
LOOPBACK = {"127.0.0.1", "::1", "localhost"}
LARGEST = 2 << 30  # bytes of a release file; the largest has a tenth of that
SMALL = 4 << 20  # no checksum file or image manifest is larger


def mirrored(url: str, mirror: str | None = None) -> str:
    """The address to ask for ``url``: the mirror's if there is one. Only HTTPS, but for a mirror on this machine."""
    mirror = os.environ.get("PINNACE_RELEASE_MIRROR", "") if mirror is None else mirror
    if mirror:
        url = f"{mirror.rstrip('/')}/{url.removeprefix('https://')}"
    if not (is_https(url) or is_local(url)):
        raise UsageError(
            f"refusing to download from {url}: it is not HTTPS",
            hint="Set PINNACE_RELEASE_MIRROR to an https:// address.",
        )
    return url


def is_https(url: str) -> bool:
    return urllib.parse.urlsplit(url).scheme == "https"


def is_local(url: str) -> bool:
    """Whether it is plain HTTP of this machine."""
    parts = urllib.parse.urlsplit(url)
    return parts.scheme == "http" and parts.hostname in LOOPBACK


def _open(request: urllib.request.Request, limit: float) -> http.client.HTTPResponse:
    """Open an address of ours. Where it leads has to be HTTPS as well, or this machine if we began there."""

    def check(url: str) -> None:
        if not (is_https(url) or (is_local(request.full_url) and is_local(url))):
            raise ComponentError(f"refusing to follow {request.full_url} to {url}: it is not HTTPS", hint=_ways_out())

    response = https.opener(check).open(request, timeout=limit)
    assert isinstance(response, http.client.HTTPResponse)  # noqa: S101 - http(s) gives nothing else
    return response


def open_url(url: str, headers: Mapping[str, str] | None = None) -> http.client.HTTPResponse:
    """Open a URL of upstream's, through the mirror if one is set, with errors that say what to do."""
    address = mirrored(url)
    request = urllib.request.Request(address, headers={"User-Agent": "pinnace", **(headers or {})})
    try:
        return _open(request, STALL)
    except urllib.error.HTTPError as error:
        raise ComponentError(f"{address} answers {error.code} {error.reason}", hint=_ways_out()) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise DownloadUnreachableError(f"cannot reach {address}: {reason}", hint=_ways_out()) from error


def read_small(url: str, headers: Mapping[str, str] | None = None) -> bytes:
    """The content of a URL that holds no more than a few kilobytes."""
    with open_url(url, headers) as response:
        content = response.read(SMALL + 1)
    if len(content) > SMALL:
        raise ComponentError(f"{url} has more than {SMALL >> 20} MiB, which is no list of checksums")
    return content


def download(
    url: str,
    target: Path,
    *,
    sha256: str,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Write the file behind ``url`` to ``target`` and verify it. A transfer that breaks is tried again."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            found = _transfer(url, target, progress, headers)
        except (OSError, http.client.HTTPException, DownloadUnreachableError) as error:
            target.unlink(missing_ok=True)
            if isinstance(error, OSError) and not isinstance(error, (ConnectionError, TimeoutError)):
                raise  # a full disk does not get better
            if attempt == ATTEMPTS:
                if isinstance(error, DownloadUnreachableError):
                    raise
                raise DownloadUnreachableError(f"{url} broke off: {error}", hint=_ways_out()) from error
            time.sleep(0.5 * attempt)
            continue
        if found != sha256:
            target.unlink()
            raise ChecksumError(
                f"{url} has the wrong checksum: expected sha256 {sha256}, got {found}",
                hint="The download was changed on its way, or is not that version. Nothing of it was kept.",
            )
        return


def _transfer(url: str, target: Path, progress: Callable[[int, int], None], headers: Mapping[str, str] | None) -> str:
    digest = hashlib.sha256()
    with open_url(url, headers) as response, target.open("wb") as file:
        total = int(response.headers.get("Content-Length") or 0)
        done = 0
        while chunk := response.read(CHUNK):
            if done + len(chunk) > LARGEST:
                raise ComponentError(f"{url} has more than {LARGEST >> 30} GiB, which no component has")
            file.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            progress(done, total)
        if total and done != total:
            raise http.client.IncompleteRead(b"", total - done)
    return digest.hexdigest()


def reachable(url: str) -> bool:
    """Whether the place of a URL answers within a few seconds. Its answer does not matter."""
    request = urllib.request.Request(mirrored(url), method="HEAD", headers={"User-Agent": "pinnace"})
    try:
        _open(request, 5.0).close()
    except (urllib.error.HTTPError, ComponentError):
        return True
    except (OSError, http.client.HTTPException):
        return False
    return True


def _ways_out() -> str:
    return (
        "Without internet: build from source with `pinnace fetch --from build`, install a bundle with "
        "`pinnace fetch --from FILE`, or set PINNACE_RELEASE_MIRROR."
    )
