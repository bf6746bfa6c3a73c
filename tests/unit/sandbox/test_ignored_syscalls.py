"""The filter that lets system calls succeed without effect, as bytes; other tests try it in the kernel."""

from __future__ import annotations

import pytest

from pinnace.sandbox.ignored_syscalls import AUDIT_ARCH, NUMBERS, filter_program


@pytest.mark.parametrize("machine", NUMBERS)
def test_every_machine_has_its_filter(machine: str) -> None:
    program = filter_program(machine, NUMBERS["x86_64"])
    assert len(program) == 8 * (5 + 2 * len(NUMBERS[machine]))
    assert AUDIT_ARCH[machine].to_bytes(4, "little") in program
    one = filter_program(machine, ["setgroups"])
    assert len(one) == 8 * 7
    assert NUMBERS[machine]["setgroups"].to_bytes(4, "little") in one
