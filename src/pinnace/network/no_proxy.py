"""NO_PROXY for a cluster: many sites have an HTTP proxy, which cannot reach the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")
NO_PROXY_VARIABLES = ("NO_PROXY", "no_proxy")  # programs read the one or the other


def no_proxy_variables(environment: Mapping[str, str], *destinations: str) -> dict[str, str]:
    """The variables to add to an environment so that its programs connect to these hosts and networks directly."""
    if not any(environment.get(name) for proxy in PROXY_VARIABLES for name in (proxy, proxy.upper())):
        return {}
    known = [entry for name in NO_PROXY_VARIABLES for entry in environment.get(name, "").split(",") if entry]
    return dict.fromkeys(NO_PROXY_VARIABLES, ",".join(dict.fromkeys([*known, *destinations])))
