"""A virtual machine with cgroup v2, for tests of what a machine with cgroup v1 cannot show.

It has a Debian made by debootstrap, its kernel, this checkout of pinnace and the components, and runs without the
kernel's help (TCG), which every machine can: 10 to 20 times slower than its host. Its clock counts instructions
(``-icount``), so that a busy host makes no time limit in it pass. Nothing that it does stays: its disk is a snapshot.
There is no network in it but a dummy interface.

    disk a: Debian      disk b: the components      disk c: a tar archive with pinnace, images, and ``vm_guest.py``
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from testbed import packages, roots
from testbed.software import make_wheels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

RELEASE = "bookworm"
PACKAGES = ("linux-image-cloud-amd64", "initramfs-tools", "kmod", "udev", "uidmap", "iproute2", "nftables", "procps",
            "python3", "python3-venv")  # fmt: skip
TOOLS = ("debootstrap", "e2fsprogs", "qemu-system-x86")  # of the machine
PREFIX = "opt/pinnace"  # in the machine
GUEST = Path(__file__).with_name("vm_guest.py")
INIT = "usr/sbin/vm-init"
MEMORY = 4096  # MiB
COMMAND_LIMIT = 900.0  # seconds for what makes the disks
BOOT_LIMIT = 300.0  # seconds; it takes about 15
DISK_FREE = 1 << 30  # bytes that a disk has beside its files
INIT_SCRIPT = f"""#!/bin/sh
# Written by tests/support/virtual_machine.py. PID 1 of the machine; the initrd has mounted /dev, /proc, /run and /sys.
mkdir -p /dev/shm && mount -t tmpfs -o mode=1777 shm /dev/shm
mkdir /run/disk && tar -x -f /dev/vdc -C /run/disk
exec /usr/bin/python3 /run/disk/{GUEST.name}
"""


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a command in the machine ended, and what it wrote."""

    code: int
    output: str


def run(*argv: str | Path) -> None:
    """Beside other work of the machine: with a low priority."""
    command = ["nice", "-n", "10", *map(str, argv)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_LIMIT)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def debian(cache: Path) -> Path:
    """The directory with the disk of Debian, its kernel and its initrd; made once."""
    key = hashlib.sha256(" ".join((*PACKAGES, INIT_SCRIPT)).encode()).hexdigest()[:8]
    made = cache / f"vm-{RELEASE}-{key}"
    with roots.locked(cache / "vm.lock"):
        if not made.exists():
            packages.ensure(TOOLS)
            with tempfile.TemporaryDirectory(dir=cache, prefix=".vm-") as place:
                _make_debian(Path(place))
                Path(place, "disk").rename(made)
    return made


def _make_debian(place: Path) -> None:
    root, disk = place / "root", place / "disk"
    mirror = roots.mirror_of(packages.run(roots.SOURCES, limit=COMMAND_LIMIT).stdout)
    run(*roots.ALONE, "debootstrap", "--variant=minbase", RELEASE, root, mirror)
    packages.deny_daemons(root)
    install = ["env", "DEBIAN_FRONTEND=noninteractive", *packages.install_command(PACKAGES)]
    run(*roots.ALONE, f"--root={root}", *install)
    run(*roots.ALONE, f"--root={root}", "python3", "-m", "venv", "--without-pip", f"/{PREFIX}")
    (root / PREFIX / "share/pinnace").mkdir(parents=True)
    (root / INIT).write_text(INIT_SCRIPT)
    (root / INIT).chmod(0o755)
    shutil.rmtree(root / "var/cache/apt/archives")
    disk.mkdir()
    for name in ("vmlinuz", "initrd.img"):
        shutil.copyfile((root / name).resolve() if (root / name).is_file() else _boot(root, name), disk / name)
    make_disk(root, disk / "root.ext4")


def _boot(root: Path, name: str) -> Path:
    [found] = (root / "boot").glob(f"{name}-*")
    return found


def make_disk(directory: Path, disk: Path) -> None:
    """A disk with the files of a directory, without a mount."""
    size = sum(path.lstat().st_size for path in directory.rglob("*")) + DISK_FREE
    run("mke2fs", "-q", "-t", "ext4", "-d", directory, disk, f"{size >> 10}k")


def components(cache: Path, share: Path) -> Path:
    """The disk with the components and seeds of ``pinnace fetch``; made once for each set of them."""
    names = sorted(str(path.relative_to(share)) for path in (*share.glob("components/*/*"), *share.glob("seeds/*")))
    disk = cache / f"vm-components-{hashlib.sha256(' '.join(names).encode()).hexdigest()[:8]}.ext4"
    with roots.locked(cache / "vm.lock"):
        if not disk.exists():
            for old in cache.glob("vm-components-*"):
                old.unlink()
            new = disk.with_suffix(".new")
            make_disk(share, new)
            new.rename(disk)
    return disk


def payload(project: Path, cache: Path, files: Iterable[Path], archive: Path) -> None:
    """The archive with what changes from run to run."""
    packages_at = f"{PREFIX}/lib/python3.11/site-packages"
    with tarfile.open(archive, "w") as tar:
        for wheel in make_wheels(project, cache).glob("*.whl"):
            with zipfile.ZipFile(wheel) as unpacked:
                for entry in unpacked.infolist():
                    about = tarfile.TarInfo(f"{packages_at}/{entry.filename}")
                    about.size, about.mode = entry.file_size, 0o755
                    tar.addfile(about, io.BytesIO(unpacked.read(entry)))
        for path in (GUEST, *files):
            tar.add(path, path.name)


def argv(debian: Path, components: Path, archive: Path, socket_at: Path, log: Path) -> list[str]:
    """The command that runs the machine."""
    disks = [
        f"file={debian / 'root.ext4'},snapshot=on",
        f"file={components},snapshot=on",
        f"file={archive},readonly=on",
    ]
    kernel = f"console=ttyS0 root=/dev/vda rw init=/{INIT} panic=-1"
    return [
        *("setpriv", "--pdeathsig=KILL", "nice", "-n", "10"),  # it ends with us, however we end
        *("qemu-system-x86_64", "-accel", "tcg,thread=single", "-icount", "shift=0"),
        *("-cpu", "max", "-smp", "1"),
        *("-m", str(MEMORY), "-display", "none", "-nic", "none", "-no-reboot"),
        *("-kernel", str(debian / "vmlinuz"), "-initrd", str(debian / "initrd.img"), "-append", kernel),
        *(word for disk in disks for word in ("-drive", f"{disk},format=raw,if=virtio")),
        *("-serial", f"file:{log}", "-serial", f"unix:{socket_at},server=on,wait=off"),
    ]


class VirtualMachine:
    """A machine that runs. Its commands are executed one by one."""

    def __init__(self, channel: socket.socket, log: Path) -> None:
        self._channel, self._log = channel, log
        self._lines = channel.makefile("rb")

    def run(self, script: str, *, user: str = "alice", cgroup: str = "plain", timeout: float = 300.0) -> Result:
        """Run a shell script. ``cgroup`` is the one in which it begins: one of ``vm_guest.CGROUPS``."""
        request = {"script": script, "user": user, "cgroup": cgroup, "timeout": timeout}
        self._channel.settimeout(timeout + 30)
        self._channel.sendall(json.dumps(request).encode() + b"\n")
        answer = json.loads(self._line())
        return Result(code=answer["code"], output=answer["output"])

    def ok(self, script: str, *, user: str = "alice", cgroup: str = "plain", timeout: float = 300.0) -> str:
        """The same for a script that has to succeed. Gives what it wrote."""
        result = self.run(script, user=user, cgroup=cgroup, timeout=timeout)
        assert result.code == 0, f"{script}: {result.code}\n{result.output}"
        return result.output

    def wait_until_up(self) -> Self:
        self._channel.settimeout(BOOT_LIMIT)
        assert self._line() == b"ready\n", self._log.read_text(errors="replace")[-6000:]
        return self

    def _line(self) -> bytes:
        return self._lines.readline()


@contextlib.contextmanager
def virtual_machine(project: Path, share: Path, cache: Path, files: Iterable[Path] = ()) -> Iterator[VirtualMachine]:
    """Start a machine; it ends with the block. ``files`` are in its /run/disk."""
    root, disk = debian(cache), components(cache, share)
    with tempfile.TemporaryDirectory(prefix="vm-") as place:
        archive, at, log = Path(place, "disk.tar"), Path(place, "socket"), Path(place, "console")
        payload(project, cache, files, archive)
        with subprocess.Popen(argv(root, disk, archive, at, log), stdin=subprocess.DEVNULL) as machine:
            try:
                deadline = time.monotonic() + BOOT_LIMIT
                while not at.exists() and time.monotonic() < deadline and machine.poll() is None:
                    time.sleep(0.1)
                with socket.socket(socket.AF_UNIX) as channel:
                    channel.connect(str(at))
                    yield VirtualMachine(channel, log).wait_until_up()
            finally:
                machine.kill()
