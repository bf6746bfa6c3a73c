"""The rules that a container's seccomp profile gets, so that its calls are caught: a pure function of its bundle.

A profile that denies one of the calls still denies it. One that has notifications of its own is left as it is, and the
container's connections take the general path.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = ("connect", "accept", "accept4", "bind", "listen", "getsockname", "getpeername")
ALLOW, NOTIFY = "SCMP_ACT_ALLOW", "SCMP_ACT_NOTIFY"
ANNOTATION = "pinnace.dev/native-sockets"  # of a pod: "false" to have its connections take the general path
# Also those of 32 bits: a filter that does not name an architecture kills its programs.
ARCHITECTURES = {
    "x86_64": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
    "aarch64": ["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"],
}
CONTAINER_TYPE = "io.kubernetes.cri.container-type"

Profile = dict[str, Any]


def with_notifications(
    bundle: dict[str, Any], listener: str, is_nodes_network: Callable[[str], bool]
) -> dict[str, Any]:
    """The bundle with a profile that sends its calls to ``listener``, if it is a container in a pod's own network.

    Containers of pods with ``hostNetwork`` name a network namespace as others do, but it is the node's.
    """
    about, linux = bundle.get("annotations", {}), bundle.get("linux", {})
    paths = [named.get("path") for named in linux.get("namespaces", ()) if named["type"] == "network"]
    in_own_network = any(path and not is_nodes_network(path) for path in paths)
    if (
        about.get(CONTAINER_TYPE) != "container"
        or not in_own_network
        or about.get(ANNOTATION, "true").lower() == "false"
    ):
        return bundle
    profile = catching(linux.get("seccomp") or unconfined(), listener)
    return bundle | {"linux": linux | {"seccomp": profile}} if profile else bundle


def unconfined() -> Profile:
    """What a container without a profile may do."""
    return {"defaultAction": ALLOW, "architectures": ARCHITECTURES.get(platform.machine(), [])}


def catching(profile: Profile, listener: str) -> Profile | None:
    """A profile that catches those of CALLS that it allowed; None if it has to stay as it is."""
    rules: list[Profile] = profile.get("syscalls") or []
    if profile.get("listenerPath") or NOTIFY in {profile["defaultAction"], *(rule["action"] for rule in rules)}:
        return None
    allowed = {
        name for rule in rules if rule["action"] == ALLOW and not rule.get("args") for name in rule["names"]
    } & set(CALLS)
    named = {name for rule in rules for name in rule["names"]}
    if profile["defaultAction"] == ALLOW:
        allowed |= set(CALLS) - named
    if "connect" not in allowed:
        return None
    kept = [rule | {"names": [name for name in rule["names"] if name not in allowed]} for rule in rules]
    caught = {"names": sorted(allowed), "action": NOTIFY}
    return profile | {"listenerPath": listener, "syscalls": [*(rule for rule in kept if rule["names"]), caught]}
