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


def internal_ip(node: dict[str, Any]) -> str:
    """The address at which the API server and other nodes reach a node. StopIteration if it has none yet."""
    return str(next(entry["address"] for entry in node["status"]["addresses"] if entry["type"] == INTERNAL_IP))
