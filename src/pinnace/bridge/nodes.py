"""Slurm's partitions as nodes of Kubernetes, so that `kubectl get nodes` tells what Slurm has."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from pinnace.bridge import wlm
from pinnace.errors import PinnaceError
from pinnace.kube.client import API_UNREACHABLE
from pinnace.validation import api_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.bridge.connections import Slurms
    from pinnace.bridge.slurmjob import Object
    from pinnace.kube.client import Api

INTERVAL = 20.0  # seconds; a node that is not heard of for 40 counts as lost
NODES = "/api/v1/nodes"
MANAGER = "pinnace-bridge"

log = logging.getLogger(__name__)


def show_partitions(api: Callable[[], Api], slurms: Slurms, begin: threading.Event) -> None:
    """For ever, in a thread of its own."""
    threading.Thread(target=_for_ever, args=(api, slurms, begin), name="partitions", daemon=True).start()


def _for_ever(api: Callable[[], Api], slurms: Slurms, begin: threading.Event) -> None:
    begin.wait()
    while True:
        try:
            if connection := slurms.first():
                update(api(), [wlm.node(found, now=int(time.time())) for found in connection.backend.partitions()])
        except (PinnaceError, *API_UNREACHABLE) as error:
            log.warning("partitions: %s", error)
        except Exception as error:  # noqa: BLE001 - what we do not understand of partitions must not stop the jobs
            log.warning("partitions: %r", error)
        time.sleep(INTERVAL)


def update(api: Api, nodes: list[Object]) -> None:
    """Write the nodes as they are, and take away those of partitions that are gone."""
    for node in nodes:
        name = node["metadata"]["name"]
        status = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": node["status"]}
        body = {key: value for key, value in node.items() if key != "status"}
        api.apply(f"{NODES}/{api_name(name)}", body, manager=MANAGER)
        api.apply(f"{NODES}/{api_name(name)}/status", status, manager=MANAGER)
    known = api.get(f"{NODES}?labelSelector=type%3Dvirtual-kubelet,{wlm.PREFIX.replace('/', '%2F')}partition")["items"]
    for gone in {node["metadata"]["name"] for node in known} - {node["metadata"]["name"] for node in nodes}:
        api.request("DELETE", f"{NODES}/{api_name(gone)}")
