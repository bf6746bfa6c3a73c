"""Which CPUs a container may run on: pure functions.

As the kubelet's static CPU manager does it: containers of Guaranteed pods that ask for whole CPUs get CPUs of their
own, all others share the rest. A container with a limit gets that many CPUs of the shared ones, those on which the
fewest others are. Whoever has CPUs keeps them as long as they fit.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Cpus = frozenset[int]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a container asks for, and what it has by now. Without ``cpus`` it asks for all that are shared."""

    container: str
    cpus: int | None
    exclusive: bool
    current: Cpus | None = None


def allocate(available: Cpus, claims: Sequence[Claim]) -> dict[str, Cpus]:
    """The CPUs of every container. Where exclusive ones leave none to the others, these share all."""
    given: dict[str, Cpus] = {}
    own: Cpus = frozenset()
    load = Counter(cpu for claim in claims for cpu in (_kept(claim, available) or ()))
    # Those that have CPUs of their own go first, so that a new one does not displace them.
    for claim in sorted((claim for claim in claims if claim.exclusive), key=lambda claim: claim.current is None):
        free = available - own
        chosen = _choose(claim, free, load)
        if len(chosen) == claim.cpus:
            given[claim.container] = chosen
            own |= chosen
    shared = available - own or available
    for claim in claims:
        if claim.container not in given:
            given[claim.container] = _choose(claim, shared, load) if claim.cpus else shared
            load.update(given[claim.container] if claim.cpus and not _kept(claim, shared) else ())
    return given


def _kept(claim: Claim, available: Cpus) -> Cpus | None:
    """What a container has, if it is what it asks for."""
    fits = claim.current is not None and claim.current <= available and len(claim.current) == claim.cpus
    return claim.current if fits else None


def _choose(claim: Claim, available: Cpus, load: Counter[int]) -> Cpus:
    """The CPUs that a container has, if they fit; else the least used ones, its own before others."""
    if kept := _kept(claim, available):
        return kept
    had = claim.current or frozenset()
    order = sorted(available, key=lambda cpu: (load[cpu], cpu not in had, cpu))
    return frozenset(order[: claim.cpus])


def parse_cpu_list(text: str) -> Cpus:
    """From the kernel's form: 0-3,8."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return frozenset(found)


def format_cpu_list(cpus: Iterable[int]) -> str:
    """The kernel's form."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
