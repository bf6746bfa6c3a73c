"""Where a pod wants to run, in Slurm's words: node selectors and affinity on the labels that job nodes have.

pinnace.dev/partition            --partition
pinnace.dev/host                 --nodelist, --exclude
feature.pinnace.dev/NAME=true    --constraint
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinnace.errors import UsageError

if TYPE_CHECKING:
    from pinnace.slurm.options import SbatchOptions

    Object = dict[str, Any]

PARTITION, HOST, FEATURE = "pinnace.dev/partition", "pinnace.dev/host", "feature.pinnace.dev/"
SAME_EVERYWHERE = {"kubernetes.io/os": {"linux"}, "kubernetes.io/arch": {"amd64", "arm64"}}


def selection(pod: Object) -> tuple[SbatchOptions, dict[str, str]]:
    """The options, and the labels that the node must then have."""
    spec = pod["spec"]
    demands = [{"key": key, "operator": "In", "values": [value]} for key, value in spec.get("nodeSelector", {}).items()]
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    if len(terms) > 1:
        raise UsageError("node affinity with several alternatives (nodeSelectorTerms) cannot be asked of Slurm")
    for term in terms:
        if term.get("matchFields"):
            raise UsageError("node affinity on fields cannot be asked of Slurm")
        demands += term.get("matchExpressions", [])
    options: SbatchOptions = {}
    features: list[str] = []
    labels: dict[str, str] = {}
    for demand in demands:
        key, operator, values = demand["key"], demand["operator"], demand.get("values", [])
        if key == PARTITION and operator == "In":
            _set(options, "partition", values)
        elif key == HOST and operator == "In" and len(values) == 1:
            _set(options, "nodelist", values)
        elif key == HOST and operator == "NotIn":
            options["exclude"] = ",".join([*filter(None, [options.get("exclude")]), *values])
        elif key.startswith(FEATURE) and (operator == "Exists" or (operator == "In" and values == ["true"])):
            features.append(key.removeprefix(FEATURE))
            labels[key] = "true"
        elif not (operator == "In" and SAME_EVERYWHERE.get(key, set()) & set(values)):
            raise UsageError(
                f"the node selector {key} {operator} {', '.join(values)}".rstrip() + " means nothing to Slurm"
            )
    if features:
        options["constraint"] = "&".join(features)
    return options, labels


def _set(options: SbatchOptions, name: str, values: list[str]) -> None:
    earlier = options.get(name)
    chosen = [value for value in values if earlier is None or value in earlier.split(",")]
    if not chosen:
        raise UsageError(f"the node selectors on --{name} exclude each other")
    options[name] = ",".join(chosen)
