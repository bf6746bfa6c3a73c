"""The file systems of a node."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from pinnace.sandbox.mountinfo import filesystem_on

if TYPE_CHECKING:
    from pathlib import Path

TABLE = """\
21 1 8:1 / / ro,relatime shared:1 - ext4 /dev/sda1 rw
30 21 0:40 / /var/lib rw - tmpfs none rw
31 30 8:1 /kubelet /var/lib/kubelet rw - ext4 /dev/sda1 rw
32 31 8:2 / /var/lib/kubelet rw - xfs scratch rw
"""


def test_the_last_mount_on_a_directory_counts() -> None:
    assert filesystem_on("/var/lib/kubelet", TABLE) == "xfs"
    assert filesystem_on("/var/lib", TABLE) == "tmpfs"
    assert filesystem_on("/nowhere", TABLE) == ""


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


ON_ITSELF = """
import os, sys
from pathlib import Path
from pinnace.sandbox.linux import mount
from pinnace.sandbox.mounts import Mount, node_mounts

steps = node_mounts(Path(sys.argv[1]), [], {})
cgroups = [step for step in steps if isinstance(step, Mount) and step.target.endswith("/sys/fs/cgroup")]
os.makedirs(cgroups[0].target)
mount("none", cgroups[0].target, "cgroup2")
for step in cgroups:
    step.execute()
print(Path(cgroups[0].target, "cgroup.procs").exists())
"""


def test_a_node_mounts_cgroups_where_the_host_has_nothing_but_cgroup_v2(tmp_path: Path) -> None:
    argv = ["unshare", "-Urm", "--cgroup", sys.executable, "-c", ON_ITSELF, str(tmp_path)]
    result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert result.stdout == "True\n", result.stderr
