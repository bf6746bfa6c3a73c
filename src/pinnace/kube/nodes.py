"""Facts about a node, read from its object."""

from __future__ import annotations

from typing import Any

from pinnace.kube import conditions

READY = "Ready"
INTERNAL_IP = "InternalIP"


def path(name: str) -> str:
    """Where the API has a node."""
    return f"/api/v1/nodes/{name}"


def is_ready(node: dict[str, Any]) -> bool:
    """Whether a node's kubelet says that it takes pods, and the API still hears it."""
    return conditions.is_true(node, READY)


def internal_ip(node: dict[str, Any]) -> str | None:
    """The address at which the API server and other nodes reach a node; None if it has none: it has no kubelet."""
    addresses = node["status"].get("addresses", ())
    return next((str(entry["address"]) for entry in addresses if entry["type"] == INTERNAL_IP), None)
