"""What PID 1 of a virtual machine does: it makes a user, cgroups and an interface, and runs the commands that are sent.

A command is a line with JSON on the second serial port, and so is its answer. Standard library alone.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import tty
from pathlib import Path
from typing import Any

DISK = Path("/run/disk")
CGROUP = Path("/sys/fs/cgroup")
CGROUPS = ("plain", "delegated")  # the second one belongs to alice
CONTROLLERS = ("cpuset", "cpu", "memory", "pids")
DELEGATED_FILES = ("", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads")
MODULES = ("overlay", "tun", "veth", "bridge", "dummy", "fuse", "nf_tables", "nft_chain_nat", "nft_ct", "nft_masq",
           "nft_redir", "nft_reject_inet", "nft_numgen", "nft_fib_inet", "nft_limit", "nft_log", "nft_hash",
           "nft_objref", "nf_conntrack_netlink")  # fmt: skip
ADDRESS = "192.0.2.10"
TIMED_OUT = 124


def sh(*argv: str) -> None:
    subprocess.run(argv, check=True)


def make_user() -> None:
    sh("useradd", "--create-home", "--shell", "/bin/bash", "--uid", "1000", "alice")
    for name in ("subuid", "subgid"):
        Path("/etc", name).write_text("alice:100000:65536\n")


def make_cgroups() -> None:
    """As systemd does it: namespaces are borders of delegation."""
    sh("mount", "-t", "cgroup2", "-o", "nsdelegate", "cgroup2", str(CGROUP))
    (CGROUP / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in CONTROLLERS))
    alice = pwd.getpwnam("alice")
    for name in CGROUPS:
        (CGROUP / name).mkdir()
    for file in DELEGATED_FILES:
        os.chown(CGROUP / "delegated" / file, alice.pw_uid, alice.pw_gid)


def make_network() -> None:
    sh("ip", "link", "set", "lo", "up")
    sh("ip", "addr", "add", f"{ADDRESS}/24", "dev", "dummy0")
    sh("ip", "link", "set", "dummy0", "up")
    sh("ip", "route", "add", "default", "via", "192.0.2.1")
    Path("/etc/hosts").write_text(f"127.0.0.1 localhost\n{ADDRESS} vm\n")
    sh("hostname", "vm")


def make_devices() -> None:
    subprocess.run(["modprobe", "--all", *MODULES], check=False)
    for device in ("/dev/net/tun", "/dev/fuse"):
        Path(device).chmod(0o666)


def install() -> None:
    shutil.copytree(DISK / "opt", "/opt", dirs_exist_ok=True)
    sh("mount", "/dev/vdb", "/opt/pinnace/share/pinnace")
    pinnace = Path("/usr/local/bin/pinnace")
    pinnace.write_text('#!/bin/sh\nexec /opt/pinnace/bin/python -m pinnace "$@"\n')
    pinnace.chmod(0o755)


def execute(request: dict[str, Any]) -> dict[str, Any]:
    """Run a script as a user, in a cgroup."""
    user = pwd.getpwnam(request["user"])

    def enter() -> None:
        (CGROUP / request["cgroup"] / "cgroup.procs").write_text("0")
        os.initgroups(user.pw_name, user.pw_gid)
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)

    environment = {"HOME": user.pw_dir, "USER": user.pw_name, "LANG": "C.UTF-8"}
    environment["PATH"] = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    try:
        done = subprocess.run(["bash", "-c", request["script"]], preexec_fn=enter, env=environment, cwd=user.pw_dir,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                              timeout=request["timeout"], start_new_session=True)  # fmt: skip
        return {"code": done.returncode, "output": done.stdout.decode(errors="replace")}
    except subprocess.TimeoutExpired as error:
        return {"code": TIMED_OUT, "output": (error.stdout or b"").decode(errors="replace")}
    except (OSError, subprocess.SubprocessError) as error:
        return {"code": 1, "output": repr(error)}


def serve() -> None:
    """Until the machine is stopped from outside."""
    port = os.open("/dev/ttyS1", os.O_RDWR | os.O_NOCTTY)
    tty.setraw(port)
    with os.fdopen(os.dup(port), "rb") as lines, os.fdopen(port, "wb", buffering=0) as answers:
        answers.write(b"ready\n")
        for line in lines:
            answers.write(json.dumps(execute(json.loads(line))).encode() + b"\n")


def main() -> None:
    os.environ["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"
    Path("/etc/resolv.conf").write_text("")
    make_devices()
    make_user()
    make_cgroups()
    make_network()
    install()
    if os.fork() == 0:
        serve()
        os._exit(0)
    while True:  # PID 1 is the parent of all that lose theirs
        os.wait()


if __name__ == "__main__":
    main()
