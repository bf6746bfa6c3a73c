"""What a pod needs, by Kubernetes' own rule, as numbers.

Containers run together, and so do sidecars (init containers that restart always); other init containers run one after
the other before them, each beside the sidecars that were started already. What a pod needs is the most of all moments.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pinnace.kube.quantities import quantity

if TYPE_CHECKING:
    from collections.abc import Callable

    Object = dict[str, Any]
    Amounts = dict[str, Decimal]

MEMORY = "memory"


def _quantities(resources: dict[str, Any]) -> Amounts:
    return {name: quantity(str(text)) for name, text in resources.items()}


def requests(container: Object) -> Amounts:
    """What a container requests; the API server has put limits where there were none."""
    return _quantities(container.get("resources", {}).get("requests", {}))


def wanted(container: Object) -> Amounts:
    """What a container is to be given: what it requests, but of memory its limit, if it has one.

    Slurm's limit of memory is a job's end, and CPUs are shared out anyway.
    """
    resources = container.get("resources", {})
    requests, limits = _quantities(resources.get("requests", {})), _quantities(resources.get("limits", {}))
    chosen = limits | requests
    if MEMORY in limits:
        chosen[MEMORY] = max(limits[MEMORY], chosen[MEMORY])
    return chosen


def _sum(*amounts: Amounts) -> Amounts:
    return {name: sum((a.get(name, Decimal(0)) for a in amounts), Decimal(0)) for a in amounts for name in a}


def _most(one: Amounts, other: Amounts) -> Amounts:
    return {name: max(one.get(name, Decimal(0)), other.get(name, Decimal(0))) for name in {*one, *other}}


def needs(pod: Object, of: Callable[[Object], Amounts] = wanted) -> Amounts:
    """What a pod needs of every resource that it names."""
    spec = pod["spec"]
    together = _sum(*(of(container) for container in spec["containers"]))
    sidecars: Amounts = {}
    before: Amounts = {}
    for container in spec.get("initContainers", ()):
        if container.get("restartPolicy") == "Always":
            sidecars = _sum(sidecars, of(container))
        before = _most(
            before, sidecars if container.get("restartPolicy") == "Always" else _sum(sidecars, of(container))
        )
    total = _most(_sum(together, sidecars), before)
    total |= of(spec)  # resources of the pod as a whole go before those of its containers
    return _sum(total, _quantities(spec.get("overhead", {})))
