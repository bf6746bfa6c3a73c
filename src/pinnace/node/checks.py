"""What a host must offer to be a node, checked one by one, with what to do where it does not.

    python -m pinnace.node.checks [--home DIRECTORY --token NAME]

``pinnace doctor`` shows all of it. An agent that cannot make its node looks here for the reason. Nothing is guessed
that can be tried: a node is made as an agent makes it, without its processes, and removed again.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import json
import os
import select
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace import ownership
from pinnace.devices import offering
from pinnace.devices.granted import accessible, named_gpus
from pinnace.devices.resources import RDMA
from pinnace.errors import NodeError
from pinnace.network import listening
from pinnace.network.addresses import choose, routes
from pinnace.network.native import support
from pinnace.network.netns_setup import add_sbin_to_path, set_up_netns
from pinnace.node import requirements
from pinnace.node.requirements import ADMINISTRATORS, MIN_HOME_FREE, SET_CLOCK, span
from pinnace.sandbox import cgroups, ids, namespaces, scratch
from pinnace.sandbox.linux import CLONE_NEWUSER, mount, unshare
from pinnace.sandbox.mounts import mount_node
from pinnace.slurm import host_name
from pinnace.spec import CLOCK_SKEW, LIFE

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping

    from pinnace.spec import DeviceOffer

MIN_SCRATCH_FREE = 256 << 20  # bytes on a host: a node without any image
AMPLE_FREE = 5 << 30  # bytes; with less, images of an ordinary size may not fit
CONNECT_LIMIT = 2.0  # seconds in which another host has connected, or cannot
CLOCK_SKEW_WARNING = 60.0  # seconds of difference between clocks that are worth a word


class CheckState(StrEnum):
    """How a check went."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Check:
    """What was looked at, how it is, and what to do if it is not well."""

    name: str
    state: CheckState
    text: str
    hint: str = ""


def ok(name: str, text: str) -> Check:
    return Check(name=name, state=CheckState.OK, text=text)


def warning(name: str, text: str, hint: str) -> Check:
    return Check(name=name, state=CheckState.WARNING, text=text, hint=hint)


def failed(name: str, text: str, hint: str) -> Check:
    return Check(name=name, state=CheckState.FAILED, text=text, hint=hint)


def host_checks(base: Path) -> Iterator[Check]:
    """All that a node needs of this host. The trial comes last, and only if it has a chance."""
    add_sbin_to_path()
    needed = [user_namespaces(), subordinate_ids(), nft(), tun(), scratch_space(base), watches()]
    yield from needed
    yield addresses()
    yield native_sockets()
    yield devices(offered_devices())
    if not any(check.state is CheckState.FAILED for check in needed):
        yield from trial(base)


def user_namespaces() -> Check:
    name = "user namespaces"
    code = _errno_of(lambda: unshare(CLONE_NEWUSER))
    if not code:
        return ok(name, "allowed")
    for sysctl, closed, wanted in (
        ("user/max_user_namespaces", "0", "28633"),
        ("kernel/unprivileged_userns_clone", "0", "1"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
    ):
        if _read(f"/proc/sys/{sysctl}") == closed:
            said = sysctl.replace("/", ".")
            hint = f"{ADMINISTRATORS} for `sysctl {said}={wanted}`."
            return failed(name, f"this host does not allow user namespaces ({said} is {closed})", hint)
    hint = f"{ADMINISTRATORS} to allow unprivileged user namespaces."
    return failed(name, f"this host does not allow user namespaces ({os.strerror(code)})", hint)


def subordinate_ids() -> Check:
    """Without them there are clusters too, in which everybody is the user."""
    name = "subordinate ids"
    given = ids.subordinate_ranges()
    wish = f"{ADMINISTRATORS} for newuidmap, and {ids.MAX_IDS} ids in {ids.SUBUID} and {ids.SUBGID}."
    if given is None:
        return warning(name, "none: all containers run as you, whatever they ask for", wish)
    count = min(count for _, count in given)
    if count < ids.MAX_IDS:
        return warning(name, f"only {count}: images with files of other users may fail", wish)
    return ok(name, f"{count} in {ids.SUBUID} and {ids.SUBGID}")


def nft() -> Check:
    found = shutil.which("nft")
    if not found:
        hint = f"{ADMINISTRATORS} for it (Debian's package: nftables), or have it in the PATH of your jobs."
        return failed("nft", "this host has none", hint)
    return ok("nft", found)


def tun() -> Check:
    path = "/dev/net/tun"
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        hint = f"{ADMINISTRATORS} for the kernel module `tun`, and {path} with mode 0666."
        return failed(path, str(error.strerror), hint)
    return ok(path, "can be opened")


def native_sockets() -> Check:
    """Which path pods' TCP connections to other hosts take."""
    name, missing = "native sockets", support.missing()
    if missing:
        hint = "TCP connections of pods take the general path: they work, and are slower."
        return warning(name, f"none: {missing}", hint)
    return ok(name, "pods' TCP connections are the host's own")


def offered_devices() -> DeviceOffer:
    """What a node would offer in this job, without what a user has set in pods.toml."""
    return offering.on_this_host(offering.DeviceMapping(), list)


def devices(offer: DeviceOffer) -> Check:
    """The GPUs of this host, which of them this job has, and with what containers get them."""
    name, host = "devices", offering.HostDevices.of(os.environ)
    named, makers = named_gpus(os.environ), offering.makers(host)
    has = " and ".join(f"{len(maker.gpus)} {maker.name} GPU{'s' * (len(maker.gpus) > 1)}" for maker in makers)
    adapters = ", RDMA adapters" if offer.of(RDMA) else ""
    gpus = [device for device in offer.devices if device.resource != RDMA]
    if named and not gpus:
        known = has or "there is no driver"
        said = f"Slurm gave GPU {','.join(named)} to this job, and none of them can be used ({known})"
        return warning(name, said, f"{ADMINISTRATORS} for the driver's device files on this host.")
    if not gpus:
        ask = ", none of them for this job (ask for them, as with --gres=gpu:1)" if has else ""
        return ok(name, f"{has or 'no GPU'}{ask}{adapters}")
    said = f"{has}, for this job: {' '.join(device.id for device in gpus)}{adapters}"
    libraries = [path for mounts in offer.mounts.values() for path in mounts]
    if any(maker.name == "NVIDIA" for maker in makers) and not any("/libcuda.so" in path for path in libraries):
        hint = f"{ADMINISTRATORS} to run ldconfig on this host: its cache does not lead to libcuda.so.1."
        return warning(name, f"{said}; containers would lack the driver's libraries", hint)
    return ok(name, f"{said}; containers get them with {len(libraries)} files of the driver")


def scratch_space(base: Path) -> Check:
    name, hint = "scratch", requirements.SCRATCH_HINT
    try:
        with tempfile.TemporaryFile(dir=base):
            pass
        free = shutil.disk_usage(base).free
    except OSError as error:
        return failed(name, f"{base}: {error.strerror}", hint)
    if unsafe := ownership.problem(base):
        return failed(name, f"{base} is not safe from other users: {unsafe}", hint)
    if scratch.is_noexec(base):
        return failed(name, requirements.noexec(base), hint)
    return _space(name, base, free, MIN_SCRATCH_FREE, hint)


def home(path: Path, token: str = "") -> Iterator[Check]:
    """The directory with clusters and components. ``token`` is a file that another host has put there."""
    hint = "Set PINNACE_HOME to a directory that you may write to, on a file system that all nodes share."
    if token and not (path / token).exists():
        yield failed("home", f"{path} is not the same directory as on {token.split('-')[1]}", hint)
        return
    try:
        with tempfile.NamedTemporaryFile(dir=path) as file:
            free = shutil.disk_usage(path).free
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                said = f"{path} has no file locks ({error.strerror})"
                yield warning("locks", said, "Do not run two `pinnace fetch` or `image` commands at once.")
    except OSError as error:
        yield failed("home", f"{path}: {error.strerror}", hint)
        return
    shared = ", the same on all hosts" if token else ""
    checked = _space("home", path, free, MIN_HOME_FREE, "Free some space or your quota, or set PINNACE_HOME elsewhere.")
    yield Check(name=checked.name, state=checked.state, text=checked.text + shared, hint=checked.hint)


def addresses() -> Check:
    """Whether the ranges that a cluster would take by itself shadow a network of this host."""
    name, hint = "addresses", "Give clusters a network that your site does not use, with --network."
    occupied = routes(_read("/proc/net/route"))
    try:
        return ok(name, " ".join(map(str, choose(occupied).all)))
    except ValueError as error:
        return warning(name, str(error), hint)


def watches() -> Check:
    """Whether the kubelet and containerd will get what they watch files with."""
    name = "file watches"
    try:
        requirements.require_watches()
    except NodeError as error:
        return failed(name, error.message, error.hint)
    return ok(name, "there are enough")


def compared_clock(skew: float) -> Check:
    """Another host's clock against ours."""
    name = "clock"
    said = f"{span(abs(skew))} {'ahead' if skew > 0 else 'behind'}"
    if skew < -CLOCK_SKEW or skew > LIFE:
        return failed(name, said, SET_CLOCK)
    if abs(skew) > CLOCK_SKEW_WARNING:
        return warning(name, said, SET_CLOCK)
    return ok(name, f"within {CLOCK_SKEW_WARNING:.0f} s of this host's")


def network(name: str, environment: Mapping[str, str]) -> tuple[socket.socket | None, Check]:
    """Where a node of a cluster with the usual options would listen; and the listener."""
    ports = environment.get("PINNACE_PORTS", "")
    try:
        address = listening.host_address(
            name, environment.get("PINNACE_LISTEN", ""), environment.get("PINNACE_INTERFACE", "")
        )
        listener = listening.bind(address, listening.PortRange.parse(ports) if ports else None, 8)
    except (OSError, ValueError) as error:
        hint = "Give another --interface, --listen or --ports, or correct pinnace.toml."
        return None, failed("network", getattr(error, "strerror", None) or str(error), hint)
    device = listening.interface_of(address) or "?"
    return listener, ok("network", f"listens at {address} ({device}), ports {ports or 'that are free'}")


def trial(base: Path) -> list[Check]:
    """Make a node, as an agent does, and see how far it gets."""
    try:
        directory = scratch.make(base, os.getuid())
        cleanup = namespaces.Cleanup(sweep=lambda: None, end=lambda _in_order: scratch.remove(directory))
        try:
            offer = offered_devices()
            cgroup, check = delegated_cgroup(directory)
            monitor, line = namespaces.start(lambda line: _try_inside(line, directory, offer, cgroup), cleanup)
            with line:
                heard = line.recv(1 << 16)
            os.waitpid(monitor, 0)
        finally:
            scratch.remove(directory)
    except (OSError, NodeError) as error:
        return [failed("node", str(error), f"{ADMINISTRATORS}; they will know the cause.")]
    if not heard:
        return [failed("node", "its first process ended", "The lines above say why.")]
    found = [Check(**about | {"state": CheckState(about["state"])}) for about in json.loads(heard)]
    return found if any(one.name == check.name for one in found) else [check, *found]


def delegated_cgroup(directory: Path) -> tuple[Path | None, Check]:
    """Whether nodes have cgroups here: one is made, as an agent does; the node's directory is removed with it."""
    try:
        made = cgroups.set_up(directory)
    except OSError as error:
        return None, no_cgroups(cgroups.describe(error))
    return made, ok("cgroups", f"delegated ({', '.join(cgroups.available(made))})")


def no_cgroups(reason: str) -> Check:
    """That is the usual case, about which a site can do little."""
    return ok("cgroups", f"{reason}: limits are kept {cgroups.OTHERWISE}")


def _try_inside(line: socket.socket, directory: Path, offer: DeviceOffer, cgroup: Path | None) -> None:
    checks = []
    try:
        with cgroups.entering(cgroup) as entry:
            mount_node(directory, {})
        if entry.refusal:
            checks.append(no_cgroups(entry.refusal))
        set_up_netns(choose([]), 0, ids.last_id(Path("/proc/self/gid_map").read_text()))
        checks.append(ok("node", "namespaces, mounts and network can be made"))
        checks += [_overlay(), *_device_files(offer)]
    except (OSError, RuntimeError) as error:
        checks.append(failed("node", str(error), f"{ADMINISTRATORS} what forbids it: SELinux, AppArmor, the kernel?"))
    line.send(json.dumps([asdict(check) for check in checks]).encode())


def _overlay() -> Check:
    """As containerd uses it: on the node's own disk."""
    top = Path("/var/lib/containerd/trial")
    parts = {name: top / name for name in ("lower", "upper", "work", "merged")}
    try:
        for part in parts.values():
            part.mkdir(parents=True)
        data = f"lowerdir={parts['lower']},upperdir={parts['upper']},workdir={parts['work']}"
        mount("overlay", str(parts["merged"]), "overlay", 0, data)
        (parts["merged"] / "file").touch()
    except OSError as error:
        hint = "It takes Linux 5.11, and a local file system: see PINNACE_SCRATCH."
        return failed("overlayfs", str(error.strerror), hint)
    return ok("overlayfs", "works in a user namespace")


def _device_files(offer: DeviceOffer) -> Iterator[Check]:
    """Whether what is bound into containers can be used in a node."""
    paths = dict.fromkeys(path for device in offer.devices for path in device.files)
    closed = [path for path in paths if not accessible(path)]
    if closed:
        yield failed("device files", f"cannot be opened in a node: {' '.join(closed)}", f"{ADMINISTRATORS} why.")
    elif paths:
        yield ok("device files", f"{len(paths)} can be opened in a node")


def _space(name: str, path: Path, free: int, least: int, hint: str) -> Check:
    said = f"{free / 2**30:.1f} GiB free in {path}" if free >= 1 << 30 else f"{free >> 20} MiB free in {path}"
    if free < least:
        return failed(name, said, hint)
    return warning(name, said, hint) if free < AMPLE_FREE else ok(name, said)


def _errno_of(call: Callable[[], None]) -> int:
    """Try something in a process of its own, for it cannot be undone: 0, or the kernel's error."""
    child = os.fork()
    if child == 0:
        code = errno.EIO
        try:
            call()
            code = 0
        except OSError as error:
            code = error.errno or errno.EIO
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _read(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text().strip()
    return ""


def main(argv: list[str]) -> int:
    """For another host, which reads it line by line and compares our clock with its own.

    A line for each check, the last with the time: srun breaks lines of more than 1,024 bytes.
    """
    parser = argparse.ArgumentParser(prog="pinnace-checks")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--token", default="")
    args = parser.parse_args(argv)
    name = host_name(os.environ)

    def tell(**about: Any) -> None:
        print(json.dumps({"host": name, **about}), flush=True)  # noqa: T201

    listener, check = network(name, os.environ)
    if listener:
        tell(listening=listener.getsockname())
    for one in (check, *home(args.home, args.token), *host_checks(scratch.base(os.environ))):
        tell(check=asdict(one))
    if listener:
        with listener:  # whoever reads this tries to connect
            select.select([listener], [], [], CONNECT_LIMIT)
    tell(time=time.time())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
