"""The user's own kubeconfig: a context for each cluster, added by ``up`` and removed by ``down``."""

from __future__ import annotations

import contextlib
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import yaml

from pinnace import ownership
from pinnace.errors import ClusterError
from pinnace.network.no_proxy import no_proxy_variables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KINDS = ("clusters", "users", "contexts")
LOCK_LIMIT = 10.0  # seconds
LOCK_RETRY_INTERVAL = 0.02  # seconds
ALTERNATIVES = "`pinnace kubectl` and `pinnace shell` do without that file."


def user_kubeconfig() -> Path:
    """Where kubectl writes: the first file of $KUBECONFIG, or ~/.kube/config."""
    first = os.environ.get("KUBECONFIG", "").split(":")[0]
    return Path(first) if first else Path.home() / ".kube" / "config"


def kubectl_environment(kubeconfig: Path) -> dict[str, str]:
    """What kubectl and its like need in order to use a cluster."""
    server = json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    return {"KUBECONFIG": str(kubeconfig), **no_proxy_variables(os.environ, urlsplit(server).hostname or "")}


def merge(kubeconfig: Path, *, current: bool = True) -> None:
    """Add a cluster's context, or replace it, and make it the current one."""
    ours = json.loads(kubeconfig.read_text())
    name = ours["current-context"]

    def change(document: dict[str, Any]) -> None:
        for kind in KINDS:
            kept = [entry for entry in document.get(kind) or () if entry["name"] != name]
            document[kind] = [*kept, *ours[kind]]
        if current:
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


def has_context(cluster: str) -> bool:
    """Whether the user's kubeconfig has the context of a cluster."""
    path = user_kubeconfig()
    return path.exists() and any(entry["name"] == f"pinnace-{cluster}" for entry in _read(path).get("contexts") or ())


def _edit(change: Callable[[dict[str, Any]], None]) -> None:
    """Read, change and replace the file at once; it holds secrets, so it is for its owner alone.

    Where it is a symbolic link, the file behind it is meant, as it is by kubectl, and both are locked. A link further
    up, as homes of some sites are, does not make two files of one.
    """
    path = user_kubeconfig().absolute()
    path = Path(os.path.realpath(path.parent)) / path.name
    real = Path(os.path.realpath(path))
    for place in (path, real):
        ownership.make_directories(place.parent)
    ownership.require(path, "your kubeconfig", "set KUBECONFIG to a file of your own")
    try:
        with contextlib.ExitStack() as stack:
            for place in dict.fromkeys((path, real)):
                stack.enter_context(_locked(place))
            document = _read(real)
            change(document)
            _replace(real, document)
    except OSError as error:
        raise ClusterError(f"your kubeconfig {path} cannot be changed: {error}", hint=ALTERNATIVES) from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Be the only one who changes a kubeconfig, by the file that kubectl makes beside it for the same purpose.

    kubectl holds it for milliseconds, and so do we. One that stays was left by a command that was killed.
    """
    lock = path.with_name(f"{path.name}.lock")
    deadline = time.monotonic() + LOCK_LIMIT
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            break
        except FileExistsError:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{lock} was there for {LOCK_LIMIT:.0f} s: another command is changing your kubeconfig, or was "
                    "killed while it did",
                    hint=f"If no kubectl and no pinnace of yours is running, remove it: `rm {lock}`. {ALTERNATIVES}",
                ) from None
            jitter = random.uniform(0.5, 1.5)  # noqa: S311 - so that those who wait do not all come at once
            time.sleep(jitter * LOCK_RETRY_INTERVAL)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any]:
    """A kubeconfig as it is; a new one if there is none. What is none stays untouched."""
    try:
        document = (yaml.safe_load(path.read_text()) if path.exists() else None) or {
            "apiVersion": "v1",
            "kind": "Config",
        }
        if all(entry["name"] for kind in KINDS for entry in document.get(kind) or ()):
            return dict(document)
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ClusterError(
            f"{path} is no kubeconfig: {error}", hint=f"Correct it, or set KUBECONFIG. {ALTERNATIVES}"
        ) from None
    raise ClusterError(f"{path} has an entry without a name", hint=f"Correct it, or set KUBECONFIG. {ALTERNATIVES}")


def _replace(path: Path, document: dict[str, Any]) -> None:
    descriptor, unfinished = tempfile.mkstemp(prefix=".config-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            yaml.safe_dump(document, file, sort_keys=False)
            file.flush()
            os.fsync(file.fileno())
        Path(unfinished).rename(path)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise
