"""The file systems of a node."""

from __future__ import annotations

from pinnace.node.mounts import file_system

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
