"""Nodes of users without subordinate IDs: a seccomp filter lets a single ID do for all.

Images have files of many owners, and containers switch to other users. In a user namespace with a single ID the kernel
refuses both. A seccomp filter, inherited by every process of the node, makes those system calls succeed without effect:
all files are the user's, and every process of every pod is root of the node, which is the user outside.
"""

from __future__ import annotations

import os
import struct

from pinnace.sandbox.linux import seccomp_filter

# chown fchown lchown fchownat setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups
IGNORED_SYSCALLS = {
    "x86_64": (92, 93, 94, 260, 105, 106, 113, 114, 117, 119, 122, 123, 116),
    "aarch64": (55, 54, 146, 144, 145, 143, 147, 149, 151, 152, 159),
}
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*, see seccomp(2)

LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF instructions, see bpf(4)
NUMBER, ARCH = 0, 4  # offsets in struct seccomp_data
ALLOW, SUCCEED = 0x7FFF0000, 0x00050000  # SECCOMP_RET_ALLOW; SECCOMP_RET_ERRNO with no error


def filter_program(machine: str) -> bytes:
    """The BPF program of the filter. System calls of other architectures are allowed as they are."""

    def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("HBBI", code, if_true, if_false, value)

    return b"".join(
        (
            instruction(LOAD, ARCH),
            instruction(EQUAL, AUDIT_ARCH[machine], if_true=1),
            instruction(RETURN, ALLOW),
            instruction(LOAD, NUMBER),
            *(
                instruction(EQUAL, number, if_false=1) + instruction(RETURN, SUCCEED)
                for number in IGNORED_SYSCALLS[machine]
            ),
            instruction(RETURN, ALLOW),
        )
    )  # fmt: skip


def ignore_id_changes() -> None:
    """Install the filter for this process and all that it starts."""
    seccomp_filter(filter_program(os.uname().machine))
