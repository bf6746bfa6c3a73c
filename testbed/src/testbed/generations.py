"""The generations of Slurm that a bed can have, with the releases of Debian that have them: pure data."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.errors import UsageError

__all__ = ["DEFAULT", "GENERATIONS", "OF_MACHINE", "Generation", "generation"]


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A version of Slurm and the release of Debian that its hosts have; ``script`` is that of debootstrap."""

    slurm: str
    release: str
    script: str
    python: str

    @property
    def of_machine(self) -> bool:
        """Whether the hosts have the machine's own root, which is Debian 12."""
        return self.release == "bookworm"

    @property
    def number(self) -> tuple[int, int]:
        """The version, to be compared with others."""
        year, month = self.slurm.split(".")
        return int(year), int(month)


GENERATIONS = (
    Generation(slurm="22.05", release="bookworm", script="bookworm", python="3.11"),
    Generation(slurm="24.11", release="trixie", script="trixie", python="3.13"),
    Generation(slurm="26.05", release="forky", script="sid", python="3.14"),
)
OF_MACHINE, DEFAULT = GENERATIONS[0].slurm, GENERATIONS[-1].slurm


def generation(slurm: str) -> Generation:
    for known in GENERATIONS:
        if known.slurm == slurm:
            return known
    raise UsageError(
        f"The bed has no Slurm {slurm!r}.", hint="It has: " + ", ".join(known.slurm for known in GENERATIONS) + "."
    )
