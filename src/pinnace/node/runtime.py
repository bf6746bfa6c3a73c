"""runc without root: the wrapper through which every container's bundle passes.

Slurm never delegates cgroups to users, so there is none that a container could be put into; and what the host mounted
read-only, a user cannot make writable. When a container is created, the wrapper takes out of the bundle's
``config.json`` what runc could only fail at, and adds what containerd leaves out in a user namespace.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PING = "net.ipv4.ping_group_range"


def wrapper_script(python: str, runc: str, added: str = "") -> str:
    """A shell script, because the shim calls the runtime a dozen times per container and Python is needed for one.

    ``added`` is a file with what all containers of the node shall have besides; then `kubectl exec` needs Python too.
    """
    edit = shlex.join([python, "-I", "-S", str(Path(__file__))])
    file = shlex.quote(added)
    also = f"""[ -n "$run" ] && {{ {edit} --process "$process" {file} || exit 1; }}\n""" if added else ""
    return f"""#!/bin/sh
for word in "$@"; do
  [ "$previous" = --bundle ] && bundle=$word
  [ "$previous" = --process ] && process=$word
  [ "$word" = create ] && create=1
  [ "$word" = exec ] && run=1
  previous=$word
done
[ -n "$create" ] && {{ {edit} --bundle "$bundle" {file} || exit 1; }}
{also}exec {shlex.quote(runc)} "$@"
"""


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


def with_ping(config: dict[str, Any], last_group: int) -> dict[str, Any]:
    """The same with echo sockets for every user of a pod, as containerd gives where it is root (see icmp(7)).

    The sandbox makes a pod's network namespace; a pod in the node's own has what the node has.
    """
    sandbox = config.get("annotations", {}).get("io.kubernetes.cri.container-type") == "sandbox"
    own_network = any(namespace["type"] == "network" for namespace in config["linux"].get("namespaces", ()))
    if not (sandbox and own_network):
        return config
    sysctl = {PING: f"0 {last_group}"} | config["linux"].get("sysctl", {})
    return config | {"linux": config["linux"] | {"sysctl": sysctl}}


def last_id(id_map: str) -> int:
    """The highest identity of a user namespace, from /proc/self/gid_map."""
    return max(int(inside) + int(count) for inside, _, count in map(str.split, id_map.splitlines())) - 1


def is_read_only(path: str) -> bool:
    """Whether a path lies on a mount that cannot be written."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:  # runc will say what is wrong with it
        return False


def with_environment(process: dict[str, Any], added: dict[str, Any]) -> dict[str, Any]:
    """A process with a directory before all others on its PATH, and with variables that it does not have."""
    variables = dict(entry.split("=", 1) for entry in process.get("env", ()))
    variables = added["environment"] | variables
    variables["PATH"] = f"{added['path']}:{variables.get('PATH', DEFAULT_PATH)}"
    return process | {"env": [f"{name}={value}" for name, value in variables.items()]}


def with_launcher(config: dict[str, Any], added: dict[str, Any]) -> dict[str, Any]:
    """A container that can start ranks (see ``node.ranks``), or whose own command is started as ranks."""
    about = config.get("annotations", {})
    if about.get("io.kubernetes.cri.container-type") != "container":
        return config
    before = added["before"].get(about.get("io.kubernetes.cri.container-name"), [])
    process = with_environment(config["process"], added)
    process["args"] = [*before, *process["args"]]
    return config | {"process": process, "mounts": [*config["mounts"], added["mount"]]}


def main(what: str, name: str, file: str) -> None:
    added = json.loads(Path(file).read_text()) if file else None
    path = Path(name) / "config.json" if what == "--bundle" else Path(name)
    about = json.loads(path.read_text())
    if what == "--bundle":
        bundle = keeping_read_only(without_cgroups(about), is_read_only)
        last = last_id(Path("/proc/self/gid_map").read_text())
        about = with_ping(with_known_groups(bundle, last), last)
        about = with_launcher(about, added) if added else about
    elif added:
        about = with_environment(about, added)
    path.write_text(json.dumps(about))


if __name__ == "__main__":
    main(*sys.argv[1:])
