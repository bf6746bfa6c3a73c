"""Opening URLs: a redirect may lead only where its reader would have gone by itself.

Python follows redirects from HTTPS to HTTP, where anybody on the way can put other content in place.
"""

from __future__ import annotations

import urllib.request
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from http.client import HTTPMessage


class _CheckedRedirects(urllib.request.HTTPRedirectHandler):
    def __init__(self, check: Callable[[str], object]) -> None:
        self._check = check

    def redirect_request(  # noqa: PLR0917 - as Python's library calls it
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        self._check(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def opener(check: Callable[[str], object]) -> urllib.request.OpenerDirector:
    """Opens URLs. ``check`` is called with every address that a redirect leads to, and raises if it is not wanted."""
    return urllib.request.build_opener(_CheckedRedirects(check))
