"""Descriptions of devices in the form that containerd reads: the Container Device Interface.

https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pinnace.spec.devices import DeviceOffer

DIRECTORY = Path("/run/cdi")  # the node's own, in memory; drivers know it as /var/run/cdi
SITES_DIRECTORY = Path("/etc/cdi")
VENDOR = "pinnace.dev"
VERSION = "0.6.0"


def kind(resource: str) -> str:
    """Not the resource's own name: a site may have descriptions of its own of it."""
    return f"{VENDOR}/{resource.replace('/', '-')}"


def name(resource: str, device: str) -> str:
    """The qualified name of a device, as the kubelet hands it to containerd."""
    return f"{kind(resource)}={device}"


def specification(resource: str, offer: DeviceOffer) -> dict[str, Any]:
    """All devices of a resource that have files, each at the same path in the container, because runc binds it.

    Variables are not in it: those of a second device would replace those of the first.
    """
    mounts = [
        {"hostPath": source, "containerPath": target, "options": ["ro", "nosuid", "nodev", "bind"]}
        for target, source in offer.mounts.get(resource, {}).items()
    ]
    return {
        "cdiVersion": VERSION,
        "kind": kind(resource),
        "devices": [
            {"name": device.id, "containerEdits": {"deviceNodes": [{"path": path} for path in device.files]}}
            for device in offer.of(resource)
            if device.files
        ],
        "containerEdits": {"mounts": mounts},
    }


def write(offer: DeviceOffer, directory: Path = DIRECTORY) -> None:
    """Describe everything that a node offers. Each description appears at once."""
    directory.mkdir(parents=True, exist_ok=True)
    for resource in offer.resources:
        if any(device.files for device in offer.of(resource)):
            file = directory / f"{kind(resource).replace('/', '-')}.json"
            new = file.with_suffix(".new")
            new.write_text(json.dumps(specification(resource, offer)))
            new.replace(file)
