"""Makes and holds worlds on one host while a pod's job runs. It reads commands and writes answers as lines of JSON.

    python -m pinnace.podjobs.ranks.companion --of PID                                 on the first host, of its node
    python -m pinnace.podjobs.ranks.companion --cluster DIRECTORY --from N@HOST:PORT   on another: copies what it needs

    {"do": "make", "world": "3", "container": {…}, "identity": {…}}
    {"do": "end", "world": "3"}

It ends, and removes everything, when its standard input is closed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.network.handshake import NO_NODE, HandshakeError, Protocol, dial
from pinnace.podjobs.ranks import world
from pinnace.podjobs.ranks.container import Volume, VolumeKind
from pinnace.podjobs.ranks.ids import ProcessCredentials, swapped_id_map
from pinnace.podjobs.ranks.launcher import INSIDE, NODE, PROC
from pinnace.removal import remove_tree
from pinnace.sandbox import namespaces, scratch
from pinnace.sandbox.entering import become_root_of
from pinnace.sandbox.ids import last_id
from pinnace.sandbox.linux import (
    CLONE_NEWNS,
    MNT_DETACH,
    MS_NODEV,
    MS_NOSUID,
    MS_REC,
    MS_SLAVE,
    die_with_parent,
    mount,
    umount2,
    unshare,
)
from pinnace.sandbox.one_user import ignore_id_changes
from pinnace.slurm import host_name
from pinnace.spec import ClusterSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

COPY_TIMEOUT = 600.0  # seconds to copy a part of a container
NAME_FILES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
UNPACK = ("tar", "--extract", "--numeric-owner", "--preserve-permissions", "--xattrs",
          "--xattrs-include=user.overlay.*", "--delay-directory-restore")  # fmt: skip


class CompanionError(Exception):
    """A world cannot be made here."""


class Companion:
    """What the first host and the others have in common. ``memory`` is a tmpfs that ends with this process."""

    def __init__(self, memory: Path, proc: str) -> None:
        self.memory, self.proc = memory, proc
        self.own = (os.getuid(), os.getgid())
        self.host = host_name(os.environ)
        self.names = {name: Path(name).read_bytes() for name in NAME_FILES if Path(name).exists()}
        self.worlds: dict[str, tuple[int, socket.socket]] = {}

    def prepare(self) -> None:
        """Set up the mount namespace. The process is root of a user namespace by now."""
        unshare(CLONE_NEWNS)
        mount("none", "/", flags=MS_REC | MS_SLAVE)
        self.memory.mkdir(parents=True, exist_ok=True)
        mount("none", str(self.memory), "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
        (self.memory / "names").mkdir()
        for name, content in self.names.items():
            (self.memory / "names" / Path(name).name).write_bytes(content)
        self.last = tuple(last_id(Path(self.proc, "self", kind).read_text()) for kind in ("uid_map", "gid_map"))
        if not self.last[0]:
            ignore_id_changes()

    def serve(self) -> None:
        for line in sys.stdin.buffer:
            command = json.loads(line)
            answer: dict[str, Any] = {"host": self.host, "world": command["world"]}
            if command["do"] == "end":
                self._end(command["world"])
                continue
            try:
                identity = ProcessCredentials.from_json(command["identity"])
                answer["pid"] = self._make(command["world"], command["container"], identity)
            except (CompanionError, HandshakeError, OSError, subprocess.SubprocessError) as error:
                self._end(command["world"])
                answer["error"] = str(error)
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()

    def close(self) -> None:
        for name in list(self.worlds):
            self._end(name)

    def root(self, name: str, container: dict[str, Any]) -> world.Root:
        raise NotImplementedError

    def binds(self, name: str, at: str, volumes: list[Volume]) -> Iterator[world.Bind]:
        raise NotImplementedError

    def forget(self, name: str) -> None:
        """Remove the files of a world."""

    def _make(self, name: str, container: dict[str, Any], identity: ProcessCredentials) -> int:
        at = self.memory / "roots" / name
        at.mkdir(parents=True)
        volumes = [Volume.from_json(volume) for volume in container["volumes"]]
        steps = world.plan(
            str(at),
            self.root(name, container),
            list(self.binds(name, str(at), volumes)),
            proc=self.proc,
            names={target: str(self.memory / "names" / Path(target).name) for target in self.names},
            read_only=container["read_only"],
        )
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                world.hold(steps, theirs)
            except BaseException as error:  # noqa: BLE001 - a forked process must not return into the caller
                with contextlib.suppress(OSError):
                    theirs.send((error.args[1] if len(error.args) > 1 else str(error)).encode()[:4096])
            os._exit(0)
        theirs.close()
        self.worlds[name] = (pid, ours)
        self._expect(ours)
        for kind, own, asked, last in zip(
            ("gid_map", "uid_map"), reversed(self.own), (identity.gid, identity.uid), reversed(self.last), strict=True
        ):
            Path(self.proc, str(pid), kind).write_text(swapped_id_map(own, asked, last))
        ours.send(world.READY)
        self._expect(ours)
        return pid

    @staticmethod
    def _expect(channel: socket.socket) -> None:
        message = channel.recv(4096)
        if message != world.READY:
            raise CompanionError(message.decode(errors="replace") or "the process that was to hold it has died")

    def _end(self, name: str) -> None:
        if name in self.worlds:
            pid, channel = self.worlds.pop(name)
            channel.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        remove_tree(self.memory / "roots" / name)
        self.forget(name)


class OnFirstHost(Companion):
    """Worlds on the container's own host: with its root and volumes themselves."""

    def root(self, name: str, container: dict[str, Any]) -> world.Root:  # noqa: ARG002
        return world.Root(path=container["root"])

    def binds(self, name: str, at: str, volumes: list[Volume]) -> Iterator[world.Bind]:  # noqa: ARG002
        for volume in volumes:
            yield world.Bind(root=at, target=volume.target, source=volume.source, read_only=volume.read_only)
        yield world.Bind(root=at, target=INSIDE, source=NODE, read_only=True)


class OnOtherHost(Companion):
    """Worlds with a copy of the container. The image is copied once, the upper layer for every world."""

    def __init__(self, directory: Path, cluster: ClusterSpec, source: str) -> None:
        super().__init__(directory / "memory", "/proc")
        address, _, port = source.partition("@")[2].rpartition(":")
        self.directory, self.source, self.listener = directory, (address, int(port)), source.encode()
        self.secret = cluster.link_key

    def prepare(self) -> None:
        if os.fork() == 0:  # in the background: remove the directories of killed companions and nodes
            die_with_parent(signal.SIGKILL)
            scratch.sweep(self.directory.parent, self.own[0])
            os._exit(0)
        super().prepare()

    def close(self) -> None:
        super().close()
        umount2(str(self.memory), MNT_DETACH)
        scratch.remove(self.directory)

    def root(self, name: str, container: dict[str, Any]) -> world.Root:
        image = self.directory / "images" / container["image"]
        if not image.is_dir():
            incomplete = image.with_suffix(".incomplete")
            remove_tree(incomplete)
            self._fetch({"image": container["image"]}, incomplete)
            incomplete.rename(image)
        own = self.directory / "worlds" / name
        (own / "work").mkdir(parents=True)
        self._fetch({"world": name, "part": "upper"}, own / "upper")
        return world.Root(lower=str(image), upper=str(own / "upper"), work=str(own / "work"))

    def binds(self, name: str, at: str, volumes: list[Volume]) -> Iterator[world.Bind]:
        for number, volume in enumerate(volumes):
            source = volume.host
            if volume.kind is VolumeKind.EMPTY:
                path = self.directory / "volumes" / hashlib.sha256(volume.source.encode()).hexdigest()[:16]
                path.mkdir(parents=True, exist_ok=True)
                path.chmod(0o777)
                source = str(path)
            elif volume.kind is VolumeKind.COPIED:
                copies = self.memory / "copies" / name / str(number)
                self._fetch({"world": name, "part": number}, copies)
                source = str(copies / Path(volume.source).name)
            yield world.Bind(root=at, target=volume.target, source=source, read_only=volume.read_only)

    def forget(self, name: str) -> None:
        for path in (self.memory / "copies" / name, self.directory / "worlds" / name):
            remove_tree(path)

    def _fetch(self, what: dict[str, Any], target: Path) -> None:
        """Copy a part of the container from the first host, as a tar (see ``server``)."""
        target.mkdir(parents=True)
        with socket.create_connection(self.source, timeout=30) as sock:
            dial(sock, self.secret, Protocol.COPY, NO_NODE, self.listener)
            sock.sendall(json.dumps(what).encode() + b"\n")
            sock.settimeout(None)
            done = subprocess.run(
                [*UNPACK, "--directory", str(target)],
                stdin=sock.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
                timeout=COPY_TIMEOUT,
            )  # fmt: skip
        if done.returncode:
            raise CompanionError(f"the copy of {what} is not whole: {done.stderr.strip()[-500:]}")


def _serve_until_end(companion: Companion) -> bool:
    """Serve until standard input is closed, or until SIGTERM; then clean up."""

    def leave(*_: object) -> None:
        raise SystemExit

    signal.signal(signal.SIGTERM, leave)
    try:
        companion.prepare()
        companion.serve()
    except SystemExit:
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        companion.close()
    return True


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="pinnace-companion")
    parser.add_argument("--of", type=int)
    parser.add_argument("--cluster", type=Path)
    parser.add_argument("--from", dest="source", default="")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(0o022)
    if args.of:
        here = OnFirstHost(Path("/run/pinnace/worlds"), PROC)
        become_root_of(args.of)
        return 0 if _serve_until_end(here) else 1
    directory = scratch.make(scratch.base(os.environ), os.getuid())
    there = OnOtherHost(directory, ClusterSpec.load(args.cluster), args.source)
    try:
        return 0 if namespaces.as_root(lambda: _serve_until_end(there)) else 1
    finally:
        scratch.remove(directory)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
