"""Many sites reach the world through an HTTP proxy. It knows nothing of a cluster, and must not be asked for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PROXIES = ("http_proxy", "https_proxy", "all_proxy")
EXCEPTIONS = ("NO_PROXY", "no_proxy")  # programs read the one or the other


def around(environment: Mapping[str, str], *places: str) -> dict[str, str]:
    """What to add to an environment so that its programs go straight to these hosts and networks."""
    if not any(environment.get(name) for proxy in PROXIES for name in (proxy, proxy.upper())):
        return {}
    known = [entry for name in EXCEPTIONS for entry in environment.get(name, "").split(",") if entry]
    return dict.fromkeys(EXCEPTIONS, ",".join(dict.fromkeys([*known, *places])))
