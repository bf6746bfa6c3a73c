"""What the developers' benchmark of growth adds to `pinnace bench growth`."""

from __future__ import annotations

import pytest

from benchmarks.growth.__main__ import parse
from benchmarks.growth.processes import component


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["/opt/store/kube-apiserver", "--etcd-servers=x"], "kube-apiserver"),
        (["python3", "-I", "/x/pinnace/interpreter.py", "pinnace.node", "--cluster", "y"], "node"),
    ],
)
def test_processes_are_known_by_their_component(argv: list[str], name: str) -> None:
    assert component(argv) == name


def test_either_part_can_be_left_out() -> None:
    options = parse(["--simulated", "", "--real", "1,2"])
    assert (options.simulated, options.real) == ((), [1, 2])
    assert parse(["--real", ""]).simulated[-1] == (500, 5000)
