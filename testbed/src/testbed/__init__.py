"""A real multi-host Slurm on one machine, for the demos and tests of pinnace.

    from testbed import Bed

    bed = Bed.current()
    bed.run(["srun", "-N2", "hostname"], user="alice").stdout

``Bed`` is looked up late: ``testbed.enter`` and ``testbed.init`` start once per command and per host, and must not pay
for what they do not use.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from testbed.bed import Bed

__all__ = ["Bed"]


def __getattr__(name: str) -> object:
    if name == "Bed":
        from testbed.bed import Bed  # noqa: PLC0415 - the reason is above

        return Bed
    raise AttributeError(f"module 'testbed' has no attribute {name!r}")
