"""The figures of the KSI paper, measured by its authors on their machine: for bare Slurm and three other systems."""

from __future__ import annotations

from enum import StrEnum


class System(StrEnum):
    """Whose figures were published."""

    BARE = "bare Slurm"
    BRIDGE = "Bridge Operator"
    HPK = "HPK"
    KSI = "KSI"


NOTE = "Published by the authors of KSI for their own machine, not measured here: only ratios can be compared."


def _figures(bare: float, bridge: float, hpk: float, ksi: float) -> dict[System, float]:
    return {System.BARE: bare, System.BRIDGE: bridge, System.HPK: hpk, System.KSI: ksi}


PUBLISHED = {
    "startup": _figures(0.111, 2.725, 2.497, 53.921),
    "cpu": _figures(15098.5, 15100.6, 14680.2, 14578.4),
    "memory": _figures(70652.6, 70582.5, 70626.9, 70277.3),
    "fio-read": _figures(386.2, 384.7, 343.7, 319.4),
    "fio-write": _figures(85.7, 89.3, 81.6, 75.0),
    "fio-randread": _figures(212.8, 214.8, 206.1, 199.8),
    "fio-randwrite": _figures(85.5, 89.1, 80.4, 77.8),
    "iperf3": _figures(9413.7, 9413.7, 7386.5, 612.8),
    "tcp-rr": _figures(57.79, 58.14, 58.57, 81.85),
}


def ratio(name: str, system: System) -> float:
    """A published figure as a ratio to that of bare Slurm on the same machine."""
    return PUBLISHED[name][system] / PUBLISHED[name][System.BARE]
