"""System calls that succeed without effect: a seccomp filter, inherited by every process that is started afterwards."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

from pinnace.sandbox.linux import seccomp_filter

if TYPE_CHECKING:
    from collections.abc import Iterable

NUMBERS = {  # aarch64 has no chown and no lchown: its C libraries use fchownat
    "x86_64": {
        "chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260, "setuid": 105, "setgid": 106, "setreuid": 113,
        "setregid": 114, "setresuid": 117, "setresgid": 119, "setfsuid": 122, "setfsgid": 123, "setgroups": 116,
    },
    "aarch64": {
        "fchown": 55, "fchownat": 54, "setuid": 146, "setgid": 144, "setreuid": 145, "setregid": 143,
        "setresuid": 147, "setresgid": 149, "setfsuid": 151, "setfsgid": 152, "setgroups": 159,
    },
}  # fmt: skip
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*, see seccomp(2)

LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF instructions, see bpf(4)
NUMBER, ARCH = 0, 4  # offsets in struct seccomp_data
ALLOW, SUCCEED = 0x7FFF0000, 0x00050000  # SECCOMP_RET_ALLOW; SECCOMP_RET_ERRNO with no error


def filter_program(machine: str, calls: Iterable[str]) -> bytes:
    """The BPF program of a filter. System calls of other architectures are allowed as they are."""

    def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("HBBI", code, if_true, if_false, value)

    known = NUMBERS[machine]
    return b"".join(
        (
            instruction(LOAD, ARCH),
            instruction(EQUAL, AUDIT_ARCH[machine], if_true=1),
            instruction(RETURN, ALLOW),
            instruction(LOAD, NUMBER),
            *(
                instruction(EQUAL, known[call], if_false=1) + instruction(RETURN, SUCCEED)
                for call in calls
                if call in known
            ),
            instruction(RETURN, ALLOW),
        )
    )  # fmt: skip


def ignore(calls: Iterable[str]) -> None:
    """Install the filter for this process and all that it starts."""
    seccomp_filter(filter_program(os.uname().machine, calls))
