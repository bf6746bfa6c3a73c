"""runc without root: the wrapper through which every container's bundle passes.

Slurm delegates no cgroups to users, so on most hosts there is none that a container could be put into; and what the
host mounted read-only, a user cannot make writable. When a container is created, the wrapper takes out of the bundle's
``config.json`` what runc could only fail at, and adds what containerd leaves out in a user namespace. Without cgroups,
limits are kept by other means (see ``node.limits``), which hear of a container when it is created, started and updated.

A shim calls the runtime a dozen times per container, so the wrapper is a few lines of shell. It has the one file edited
by the node's init, which has Python running: it writes a line into a FIFO, and reads the answer from another.
"""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.objects import HOST_NETWORK
from pinnace.controlplane.tasks import TASKS
from pinnace.devices.libraries import update_loader_cache
from pinnace.network.native.profile import with_notifications
from pinnace.node.limits.affinity import AFFINITY
from pinnace.node.limits.limiter import with_affinity
from pinnace.node.services import host_network, user_groups
from pinnace.podjobs import held_pods
from pinnace.podjobs.container_status import note_created
from pinnace.sandbox.ids import last_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pinnace.node.limits.limiter import Limiter
    from pinnace.node.services.host_network import Host

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PING = "net.ipv4.ping_group_range"
DONE = "done"
DEFAULT_HANDLER = "runc"  # containerd's runtime handler of pods without a RuntimeClass


def wrapper_script(
    runc: str,
    ask: str,
    *,
    launcher: bool,
    handler: str = DEFAULT_HANDLER,
    keeper: Sequence[str] = (),
    tasks: str = str(TASKS),
    cgroups: bool = False,
) -> str:
    """What containerd calls for runc. Whoever opens a FIFO for both directions does not wait for the other end.

    Only where there is something to add to its environment, or its container has CPUs of its own, does `kubectl exec`,
    which probes use too, have anything edited. Without ``cgroups``, `update` is not runc's: it could only change those.
    ``keeper`` is the command behind which runc keeps the user's groups, for containers that shall have them.
    """
    words = "create | exec | start" if cgroups else "create | exec | start | update"
    edited = "true" if launcher or handler == HOST_NETWORK else "false"
    return f"""#!/bin/sh
for word in "$@"; do
  [ "$previous" = --bundle ] && file=$word/config.json
  [ "$previous" = --process ] && file=$word
  case $word in {words}) kind=$word ;; esac
  previous=$word
done
bundle={shlex.quote(tasks)}/$word
case $kind in
  exec) {edited} || [ -e "$bundle/{AFFINITY}" ] || kind= ;;
  start) {{ [ -e "$bundle/{AFFINITY}" ] || [ -e "$bundle/{held_pods.MARK}" ]; }} && file=$bundle/start ;;
  update) file=$bundle/update && cat >"$file" || exit 1 ;;
esac
if [ -n "$kind" ] && [ -n "$file" ]; then
  mkfifo -m 600 "$file.answer" && exec 9<>"$file.answer" &&
    echo "$kind {handler} $word $file" 1<>{shlex.quote(ask)} && read -r answer <&9
  rm -f "$file.answer"
  exec 9>&-
  [ "$answer" = "{DONE}" ] || {{ echo "$answer" >&2; exit 1; }}
  [ "$kind" = update ] && exit 0
fi
{keep_groups(runc, keeper) if keeper else ""}exec {shlex.quote(runc)} "$@"
"""


def keep_groups(runc: str, keeper: Sequence[str]) -> str:
    """The wrapper's line for containers with a mark. ``create`` and ``exec``, which change users, name a file."""
    return f'[ -n "$file" ] && [ -e "$bundle/{user_groups.MARK}" ] && exec {shlex.join([*keeper, runc])} "$@"\n'


def without_cgroups(config: dict[str, Any]) -> dict[str, Any]:
    """The bundle's configuration, less what only cgroups could do."""
    linux = {key: value for key, value in config["linux"].items() if key not in {"cgroupsPath", "resources"}}
    return config | {"linux": linux}


def keeping_read_only(config: dict[str, Any], read_only: Callable[[str], bool]) -> dict[str, Any]:
    """The same with volumes no more writable than what they come from.

    A hostPath is asked for as ``rw`` unless the pod says otherwise, and the kernel locks the flags of mounts that were
    there before our user namespace: a site's read-only software tree could not be mounted at all.
    """

    def options(mount: dict[str, Any]) -> list[str]:
        asked: list[str] = mount.get("options", [])
        locked = "rw" in asked and {"bind", "rbind"} & set(asked) and read_only(mount["source"])
        return [option for option in asked if option != "rw"] if locked else asked

    return config | {"mounts": [mount | {"options": options(mount)} for mount in config.get("mounts", ())]}


def with_known_groups(config: dict[str, Any], last_group: int) -> dict[str, Any]:
    """The same without groups that the node does not know: a terminal's, where the user is the only one."""

    def known(option: str) -> bool:
        name, _, value = option.partition("=")
        return name != "gid" or int(value) <= last_group

    mounts = [
        mount | {"options": [option for option in mount.get("options", ()) if known(option)]}
        for mount in config["mounts"]
    ]
    return config | {"mounts": mounts}


def is_sandbox(config: dict[str, Any]) -> bool:
    return bool(config.get("annotations", {}).get("io.kubernetes.cri.container-type") == "sandbox")


def for_one_architecture(config: dict[str, Any]) -> dict[str, Any]:
    """The same with a seccomp profile of the sandbox that has this machine's architecture alone, its first.

    The only program there is ours, and a filter for three takes libseccomp seven times as long as one.
    """
    profile = config["linux"].get("seccomp")
    if not (profile and is_sandbox(config)):
        return config
    narrowed = profile | {"architectures": profile.get("architectures", [])[:1]}
    return config | {"linux": config["linux"] | {"seccomp": narrowed}}


def with_ping(config: dict[str, Any], last_group: int) -> dict[str, Any]:
    """The same with echo sockets for every user of a pod, as containerd gives where it is root (see icmp(7)).

    The sandbox makes a pod's network namespace; a pod in the node's own has what the node has.
    """
    own_network = any(namespace["type"] == "network" for namespace in config["linux"].get("namespaces", ()))
    if not (is_sandbox(config) and own_network):
        return config
    sysctl = {PING: f"0 {last_group}"} | config["linux"].get("sysctl", {})
    return config | {"linux": config["linux"] | {"sysctl": sysctl}}


def is_read_only(path: str) -> bool:
    """Whether a path lies on a mount that cannot be written."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:  # runc will say what is wrong with it
        return False


def is_nodes_network(path: str) -> bool:
    """Whether a network namespace is the one that we are in."""
    try:
        return Path(path).samefile("/proc/self/ns/net")
    except OSError:  # runc will say what is wrong with it
        return False


def with_environment(process: dict[str, Any], added: dict[str, Any]) -> dict[str, Any]:
    """A process with a directory before all others on its PATH, and with variables that it does not have."""
    variables = dict(entry.split("=", 1) for entry in process.get("env", ()))
    variables = added["environment"] | variables
    variables["PATH"] = f"{added['path']}:{variables.get('PATH', DEFAULT_PATH)}"
    return process | {"env": [f"{name}={value}" for name, value in variables.items()]}


def with_launcher(config: dict[str, Any], added: dict[str, Any]) -> dict[str, Any]:
    """A container that can start ranks (see ``podjobs.ranks``), or whose own command is started as ranks."""
    about = config.get("annotations", {})
    if about.get("io.kubernetes.cri.container-type") != "container":
        return config
    before = added["before"].get(about.get("io.kubernetes.cri.container-name"), [])
    process = with_environment(config["process"], added)
    process["args"] = [*before, *process["args"]]
    return config | {"process": process, "mounts": [*config["mounts"], added["mount"]]}


@dataclass(frozen=True, kw_only=True)
class Edits:
    """What a node adds to its containers.

    ``launcher``: what lets them start ranks. ``host`` describes the host, for those in its network. ``notify``: the
    socket to which their calls are sent for native sockets. ``limiter`` makes their limits hold, where no cgroup does.
    ``keep_groups``: whether the user has groups to keep.
    """

    launcher: dict[str, Any] | None
    host: Callable[[], Host]
    notify: str
    limiter: Limiter | None
    keep_groups: bool = False


def edit(
    kind: str, container: str, path: Path, edits: Edits, host: Host | None, *, patience: float | None = None
) -> None:
    """The configuration of a container that is created, or of a process that is executed in one.

    ``host`` is the host of a container in the host's network. When a container is started or updated, ``path`` is not
    a configuration of runc's. If its pod is held, its start waits, for up to ``patience`` seconds, if that is given.
    """
    limiter = edits.limiter
    if kind == "start":
        held_pods.wait(path.parent, limit=patience)
        if limiter:
            limiter.started(path.parent)
        return
    about, added = json.loads(path.read_text()), edits.launcher
    if limiter and kind == "update":
        limiter.updated(about, limiter.tasks / container)
        return
    if kind == "create":
        held_pods.mark(about, path.parent)
        note_created(about, container)
        if limiter:
            limiter.created(about, path.parent)
            about = without_cgroups(about)
        about = host_network.on_host_network(about, host, path.parent) if host else about
        bundle = keeping_read_only(about, is_read_only)
        last = last_id(Path("/proc/self/gid_map").read_text())
        about = with_ping(for_one_architecture(with_known_groups(bundle, last)), last)
        about = with_launcher(about, added) if added else about
        if edits.notify:
            about = with_notifications(about, edits.notify, is_nodes_network)
        if edits.keep_groups and user_groups.keeps_groups(about, path.parent / "rootfs"):
            (path.parent / user_groups.MARK).touch()
        update_loader_cache(about, path.parent)
    else:
        about = host_network.with_host_environment(about, host) if host else about
        about = with_environment(about, added) if added else about
        about = with_affinity(about, limiter.tasks / container) if limiter else about
    path.write_text(json.dumps(about))


def answer(request: str, edits: Edits, *, patience: float | None = None) -> None:
    """Do what a wrapper has asked for, and say so; or why not."""
    kind, handler, container, name = request.split(" ", 3)
    try:
        host = edits.host() if handler == HOST_NETWORK else None
        edit(kind, container, Path(name), edits, host, patience=patience)
        word = DONE
    except Exception as error:  # noqa: BLE001 - it is told to whoever waits for it
        word = f"pinnace could not edit {name}: {error!r}"
    descriptor = os.open(f"{name}.answer", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.write(descriptor, f"{word}\n".encode())
    finally:
        os.close(descriptor)


class Requests:
    """What the wrappers ask for."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path, 0o600)
        self.descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def read(self) -> list[str]:
        """Each is written at once, and shorter than what a FIFO takes at once."""
        return os.read(self.descriptor, 1 << 16).decode().splitlines()
