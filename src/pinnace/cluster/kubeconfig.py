"""The user's own kubeconfig: a context for each cluster, added by ``up`` and removed by ``down``."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import yaml

from pinnace.network import proxies

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = ("clusters", "users", "contexts")


def user_kubeconfig() -> Path:
    """Where kubectl writes: the first file of $KUBECONFIG, or ~/.kube/config."""
    first = os.environ.get("KUBECONFIG", "").split(":")[0]
    return Path(first) if first else Path.home() / ".kube" / "config"


def kubectl_environment(kubeconfig: Path) -> dict[str, str]:
    """What kubectl and its like need in order to use a cluster."""
    server = json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    return {"KUBECONFIG": str(kubeconfig), **proxies.around(os.environ, urlsplit(server).hostname or "")}


def merge(kubeconfig: Path) -> None:
    """Add a cluster's context and make it the current one."""
    ours = json.loads(kubeconfig.read_text())
    name = ours["current-context"]

    def change(document: dict[str, Any]) -> None:
        for kind in KINDS:
            kept = [entry for entry in document.get(kind) or () if entry["name"] != name]
            document[kind] = [*kept, *ours[kind]]
        document["current-context"] = name

    _edit(change)


def unmerge(cluster: str) -> None:
    """Take a cluster's context away."""
    name = f"pinnace-{cluster}"

    def change(document: dict[str, Any]) -> None:
        for kind in KINDS:
            document[kind] = [entry for entry in document.get(kind) or () if entry["name"] != name]
        if document.get("current-context") == name:
            document["current-context"] = ""

    if user_kubeconfig().exists():
        _edit(change)


def _edit(change: Callable[[dict[str, Any]], None]) -> None:
    """Read, change and replace the file at once; it holds secrets, so it is for its owner alone."""
    path = user_kubeconfig()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    document = (yaml.safe_load(path.read_text()) if path.exists() else None) or {"apiVersion": "v1", "kind": "Config"}
    change(document)
    descriptor, unfinished = tempfile.mkstemp(prefix=".config-", dir=path.parent)
    with os.fdopen(descriptor, "w") as file:
        yaml.safe_dump(document, file, sort_keys=False)
    Path(unfinished).rename(path)
