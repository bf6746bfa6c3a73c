"""The devices of a node: described for containerd, and offered to the kubelet by a service."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pinnace.devices import cdi
from pinnace.interpreter import python_argv

if TYPE_CHECKING:
    from pinnace.node.init import Init

SERVICE = "devices"


def add(init: Init) -> None:
    """The device plugin. It waits for the kubelet by itself, every time that one starts."""
    offer = init.node.offer
    cdi.write(offer)
    file = init.write("devices.json", json.dumps(offer.to_json()))
    init.service(SERVICE, python_argv("pinnace.devices.plugin", file))
