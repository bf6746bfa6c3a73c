"""The file systems of a node."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from pinnace.sandbox.mounts import file_system

if TYPE_CHECKING:
    from pathlib import Path

TABLE = """\
/dev/sda1 / ext4 ro,relatime 0 0
none /var/lib tmpfs rw 0 0
/dev/sda1 /var/lib/kubelet ext4 rw 0 0
scratch /var/lib/kubelet xfs rw 0 0
"""


def test_the_last_mount_on_a_directory_counts() -> None:
    assert file_system("/var/lib/kubelet", TABLE) == "xfs"
    assert file_system("/var/lib", TABLE) == "tmpfs"
    assert file_system("/nowhere", TABLE) == ""


LATER = """
import os, sys
from pathlib import Path
from pinnace.sandbox.linux import CLONE_NEWNS, MS_REC, MS_SLAVE, mount, unshare
from pinnace.sandbox.mounts import make_read_only

data = Path(sys.argv[1])
mount("none", str(data), "tmpfs")
(data / "earlier").mkdir()
(data / "later").mkdir()
mount("none", str(data / "earlier"), "tmpfs")
(begun, begin), (mounted, go) = os.pipe(), os.pipe()
if os.fork() == 0:
    os.close(go)
    unshare(CLONE_NEWNS)
    mount("none", "/", flags=MS_REC | MS_SLAVE)
    make_read_only([str(data), "/no/such/place"])
    os.write(begin, b"x")
    os.read(mounted, 1)
    for place in (data, data / "earlier", data / "later"):
        try:
            (place / "file").touch()
            print(place.name, "written", flush=True)
        except OSError as error:
            print(place.name, error.strerror, flush=True)
    os._exit(0)
os.close(begin)
os.read(begun, 1)
mount("none", str(data / "later"), "tmpfs")
os.close(go)
os.wait()
"""


def test_what_is_read_only_is_so_below_later_mounts_too(tmp_path: Path) -> None:
    spaces = ["unshare", "--user", "--map-root-user", "--mount", "--propagation=shared"]
    argv = [*spaces, sys.executable, "-c", LATER, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    expected = [f"{name} Read-only file system" for name in (tmp_path.name, "earlier", "later")]
    assert done.stdout.splitlines() == expected, done.stderr
