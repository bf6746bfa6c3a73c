"""What a site or a user can set about pods as jobs, and of devices: the file ``pods.toml`` in $PINNACE_HOME.

memory = "per-node"            # --mem; "per-cpu" is --mem-per-cpu, "none" where the site gives whole nodes
exclusive = false              # whole nodes
overhead_mib = 640             # for the processes of the node itself
default_memory_mib = 512       # of a pod that says nothing about memory
max_jobs = 200                 # in Slurm's queue at a time, for this cluster; the site may allow fewer
reuse_seconds = 120            # for so long a job takes further pods of the same owner; 0: every pod has its own
flags = ["--comment2"]         # options of the site's own that pods may use, as --name=value
idle_seconds = 60              # after which an elastic node leaves
drain_seconds = 300            # before an elastic node's time limit, at which its pods have to go
elastic = ["--cpus-per-task=4", "--mem=8G"]      # the shape of elastic nodes
restricted = false             # pods may ask for what they need, and not of whom; true in a restricted cluster

[resources]                    # Kubernetes' name = Slurm's GRES, perhaps with a type; "" if Slurm need not be asked
"example.com/fpga" = "fpga"

[devices]                      # the device files of a GRES that is no GPU, in the order of gres.conf
"example.com/fpga" = ["/dev/fpga[0-9]*"]

[priorities]                   # PriorityClass = options
urgent = ["--qos=high"]
patient = ["--nice=1000"]
"""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from pinnace.devices.resources import GRES
from pinnace.errors import UsageError
from pinnace.slurm.allowed_options import owner_options
from pinnace.slurm.sizes import parse_mebibytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pinnace.slurm.options import SbatchOptions

MEMORY = ("per-node", "per-cpu", "none")


@dataclass(frozen=True, kw_only=True)
class PodJobSettings:
    memory: str = "per-node"
    exclusive: bool = False
    overhead_mib: int = 640
    default_memory_mib: int = 512
    max_jobs: int = 200
    reuse_seconds: int = 120
    flags: list[str] = field(default_factory=list)
    idle_seconds: int = 60
    drain_seconds: int = 300
    elastic: list[str] = field(default_factory=list)
    restricted: bool = False
    resources: dict[str, str] = field(default_factory=dict)
    devices: dict[str, list[str]] = field(default_factory=dict)
    priorities: dict[str, list[str]] = field(default_factory=dict)

    @staticmethod
    def from_json(data: dict[str, Any]) -> PodJobSettings:
        known = {entry.name: entry.type for entry in fields(PodJobSettings)}
        for name, value in data.items():
            if name not in known:
                raise UsageError(f"pods.toml: there is no setting {name!r}", hint=f"There are: {', '.join(known)}.")
            if not isinstance(value, type(getattr(PodJobSettings(), name))):
                raise UsageError(f"pods.toml: {name} cannot be {value!r}")
        settings = PodJobSettings(**data)
        if settings.memory not in MEMORY:
            raise UsageError(f"pods.toml: memory cannot be {settings.memory!r}", hint=f"One of {', '.join(MEMORY)}.")
        return settings

    @staticmethod
    def load(path: Path, defaults: dict[str, Any] | None = None) -> PodJobSettings:
        """From a file, where there is one, and the site's ``defaults``. What could not be used later is refused now."""
        try:
            own = tomllib.loads(path.read_text()) if path.exists() else {}
            settings = PodJobSettings.from_json((defaults or {}) | own)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{path} cannot be read: {error}") from error
        settings.check_options()
        settings.check_devices()
        return settings

    def check_options(self) -> None:
        """Whether the options for sbatch can be read."""
        for where, args in [("elastic", self.elastic), *self.priorities.items()]:
            if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
                raise UsageError(f"pods.toml: {where} cannot be {args!r}")
            try:
                options = owner_options(args)
                node_cpus(options)
                node_memory(options)
            except UsageError as error:
                raise UsageError(f"pods.toml: {where}: {error.message}", hint=error.hint) from error

    def check_devices(self) -> None:
        """Whether the tables of devices can be read."""
        for name, gres in self.resources.items():
            if "/" not in name or not isinstance(gres, str):
                raise UsageError(
                    f"pods.toml: [resources] cannot have {name!r} = {gres!r}",
                    hint='Write a name with a domain, and a GRES: "example.com/fpga" = "fpga".',
                )
        for name, files in self.devices.items():
            if not isinstance(files, list) or not all(
                isinstance(file, str) and file.startswith("/dev/") for file in files
            ):
                raise UsageError(
                    f"pods.toml: [devices] cannot have {name!r} = {files!r}",
                    hint='Write a list of files in /dev: "example.com/fpga" = ["/dev/fpga[0-9]*"].',
                )
            if name not in self.gres:
                raise UsageError(
                    f"pods.toml: [devices] has {name!r}, which [resources] has not", hint="Say there which GRES it is."
                )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def gres(self) -> dict[str, str]:
        return GRES | self.resources


def node_cpus(options: SbatchOptions) -> int | None:
    """The CPUs that a node is to have; None if its options do not say."""
    return _number(options, "cpus-per-task", int)


def node_memory(options: SbatchOptions) -> int | None:
    """The memory that a node is to have, in MiB; None if its options do not say. 0 is all of a host's."""
    return _number(options, "mem", parse_mebibytes)


def _number(options: SbatchOptions, name: str, parse: Callable[[str], int]) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"--{name}={text} cannot be read", hint="Write it as sbatch takes it.") from error
