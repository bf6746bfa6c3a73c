"""What a node offers: the devices that Slurm gave to the job on this host, under Kubernetes' names of them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.devices import drm, libraries, nvidia
from pinnace.devices.granted import accessible, chosen, named_gpus
from pinnace.devices.resources import GPU, GRES, RDMA, gres_name, gres_type
from pinnace.spec.devices import Device, DeviceOffer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pinnace.devices.gpu import Gpu
    from pinnace.slurm.gres import AllocatedGres

ROOT_VARIABLE = "PINNACE_DRIVER_ROOT"  # where /proc/driver and /sys are looked for; a test bed can make neither
RDMA_SHARES = 64  # containers of a node that may use its adapters at a time


@dataclass(frozen=True, kw_only=True)
class HostDevices:
    """Where the devices of a host are looked for, and who may use which."""

    root: Path = Path("/")
    devices: Path = Path("/dev")
    may_use: Callable[[str], bool] = accessible
    loader_cache: Path = Path("/etc/ld.so.cache")

    @staticmethod
    def of(environment: Mapping[str, str]) -> HostDevices:
        return HostDevices(root=Path(environment.get(ROOT_VARIABLE) or "/"))


@dataclass(frozen=True, kw_only=True)
class Maker:
    """The GPUs of one maker on this host. ``domain`` begins the names of its resources."""

    name: str
    domain: str
    gpus: list[Gpu]
    common: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    mounts: Callable[[], dict[str, str]] = dict


def makers(host: HostDevices) -> list[Maker]:
    """All that this host has GPUs of."""
    kfd = host.devices / drm.KFD
    found = [
        Maker(
            name="NVIDIA",
            domain="nvidia.com/",
            gpus=nvidia.gpus(host.root, host.devices),
            common=nvidia.common_files(host.devices),
            variables=nvidia.VARIABLES,
            mounts=lambda: libraries.nvidia_mounts(host.loader_cache),
        ),
        Maker(
            name="AMD",
            domain="amd.com/",
            gpus=drm.gpus(drm.AMD, host.root, host.devices) if kfd.exists() else [],
            common=(str(kfd),),
            variables=drm.AMD_VARIABLES,
        ),
        Maker(name="Intel", domain="gpu.intel.com/", gpus=drm.gpus(drm.INTEL, host.root, host.devices)),
    ]
    return [maker for maker in found if maker.gpus]


@dataclass(frozen=True, kw_only=True)
class DeviceMapping:
    """What the cluster's user or site has said: the GRES of each resource, and the device files of some of them.

    ``resources`` are those that the pod of a node for one pod asks for; None on other nodes.
    """

    gres: dict[str, str] = field(default_factory=lambda: dict(GRES))
    files: dict[str, list[str]] = field(default_factory=dict)
    resources: tuple[str, ...] | None = None

    @property
    def needs_details(self) -> bool:
        """Whether Slurm has to be asked about the job: its variables tell numbers of GPUs, and nothing else."""
        mapped = [gres for name, gres in self.gres.items() if self.resources is None or name in self.resources]
        return any(gres and gres != GPU for gres in mapped)


def offered(
    host: HostDevices,
    environment: Mapping[str, str],
    mapping: DeviceMapping,
    details: Callable[[], list[AllocatedGres]],
) -> DeviceOffer:
    """All of it. ``details`` asks Slurm what the job has of generic resources on this host."""
    allocated = details() if "SLURM_JOB_ID" in environment and mapping.needs_details else []
    devices: list[Device] = []
    mounts: dict[str, dict[str, str]] = {}
    for maker in makers(host):
        of_maker = _gpus(maker, host, environment, mapping, allocated)
        devices += of_maker
        mounts |= {name: maker.mounts() for name in dict.fromkeys(device.resource for device in of_maker)}
    devices += _others(host, mapping, allocated, in_job="SLURM_JOB_ID" in environment)
    devices += _rdma(host, mapping, allocated)
    if mapping.resources is not None:
        devices = [device for device in devices if device.resource in mapping.resources]
    names = dict.fromkeys([*(device.resource for device in devices), *(mapping.resources or ())])
    return DeviceOffer(
        devices=tuple(devices),
        resources=tuple(names),
        mounts={name: found for name, found in mounts.items() if found and name in names},
    )


def _gpus(
    maker: Maker,
    host: HostDevices,
    environment: Mapping[str, str],
    mapping: DeviceMapping,
    allocated: Sequence[AllocatedGres],
) -> list[Device]:
    names = named_gpus(environment)
    common = tuple(path for path in maker.common if host.may_use(path))
    if names and all(name.startswith("MIG-") for name in names):
        resource = _resource(maker, maker.gpus[0], _only_type(allocated), mapping)
        instances = {name: nvidia.mig_files(name, maker.gpus, host.root, host.devices, host.may_use) for name in names}
        return [
            Device(
                resource=resource, id=_identifier(name), files=(*own, *common), variables=maker.variables, value=name
            )
            for name, own in instances.items()
            if resource and own
        ]
    found = []
    for gpu in chosen(maker.gpus, names, host.may_use):
        if resource := _resource(maker, gpu, _type_of(maker.gpus.index(gpu), allocated), mapping):
            files = tuple(path for path in gpu.files if host.may_use(path))
            found.append(
                Device(
                    resource=resource,
                    id=gpu.uuid or Path(gpu.file).name,
                    files=(*files, *common),
                    variables=maker.variables if gpu.uuid else (),
                    value=gpu.uuid,
                    numa_node=gpu.numa_node,
                )
            )
    return found


def _resource(maker: Maker, gpu: Gpu, kind: str, mapping: DeviceMapping) -> str:
    """The name under which a GPU is offered, exactly one: what the pod asks for, else that of its type, else of all."""

    def fits(name: str, gres: str) -> bool:
        of_maker = name.startswith(maker.domain) or not name.startswith(("nvidia.com/", "amd.com/", "gpu.intel.com/"))
        of_driver = maker.name != "Intel" or GRES.get(name) != GPU or name.endswith(f"/{gpu.driver}")
        return gres_name(gres) == GPU and gres_type(gres) in {"", kind} and of_maker and of_driver

    names = [name for name, gres in reversed(mapping.gres.items()) if fits(name, gres)]
    asked = [name for name in names if name in (mapping.resources or ())]
    typed = [name for name in names if gres_type(mapping.gres[name])]
    return next(iter((*asked, *typed, *names)), "")


def _type_of(index: int, allocated: Sequence[AllocatedGres]) -> str:
    """The type of a GPU in gres.conf, by its place there."""
    return next((gres.type for gres in allocated if gres.name == GPU and index in gres.indexes), _only_type(allocated))


def _only_type(allocated: Sequence[AllocatedGres]) -> str:
    types = {gres.type for gres in allocated if gres.name == GPU}
    return types.pop() if len(types) == 1 else ""


def _identifier(name: str) -> str:
    """A name as CDI and the kubelet take it for a device."""
    return re.sub(r"[^A-Za-z0-9_.:-]", "_", name)[:63]


def _others(
    host: HostDevices, mapping: DeviceMapping, allocated: Sequence[AllocatedGres], *, in_job: bool
) -> list[Device]:
    """What the site maps to a GRES that is no GPU. A GRES that is a mere count has no files."""
    found = []
    for resource, gres in mapping.gres.items():
        if not gres or gres_name(gres) == GPU or resource == RDMA:
            continue
        paths = sorted({path for pattern in mapping.files.get(resource, ()) for path in _matches(pattern)}, key=natural)
        if not in_job:
            found += [_file_device(resource, path) for path in paths if host.may_use(path)]
            continue
        for part in _of_gres(gres, allocated):
            if paths:
                own = [paths[index] for index in part.indexes if index < len(paths)]
                found += [_file_device(resource, path) for path in own if host.may_use(path)]
            else:
                numbers = part.indexes or range(part.count)
                found += [Device(resource=resource, id=f"{part.name}{number}") for number in numbers]
    return found


def _file_device(resource: str, path: str) -> Device:
    return Device(resource=resource, id=_identifier(path.removeprefix("/dev/")), files=(path,))


def _of_gres(gres: str, allocated: Sequence[AllocatedGres]) -> list[AllocatedGres]:
    name, kind = gres_name(gres), gres_type(gres)
    return [part for part in allocated if part.name == name and (not kind or part.type == kind)]


def _matches(pattern: str) -> list[str]:
    """The device files that a pattern of pods.toml stands for."""
    return [str(path) for path in Path("/").glob(pattern.lstrip("/")) if not path.is_dir()]


def natural(path: str) -> list[tuple[int, str]]:
    """For sorting: device 2 goes before device 10."""
    return [(int(word), "") if word.isdigit() else (0, word) for word in re.split(r"(\d+)", path)]


def _rdma(host: HostDevices, mapping: DeviceMapping, allocated: Sequence[AllocatedGres]) -> list[Device]:
    """The adapters of the host, which containers share, as processes do."""
    directory = host.devices / "infiniband"
    files = tuple(str(path) for path in sorted(directory.glob("*")) if host.may_use(str(path)))
    if not any("/uverbs" in path for path in files) or RDMA not in mapping.gres:
        return []
    gres = mapping.gres[RDMA]
    shares = sum(part.count for part in _of_gres(gres, allocated)) if gres else RDMA_SHARES
    return [Device(resource=RDMA, id=f"hca{number}", files=files) for number in range(shares)]


def on_this_host(mapping: DeviceMapping, details: Callable[[], list[AllocatedGres]]) -> DeviceOffer:
    """For an agent, in its job."""
    return offered(HostDevices.of(os.environ), os.environ, mapping, details)
