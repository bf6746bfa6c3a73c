"""Who comes after a pod in the same job: the node looks for a pod that waits and is of the same kind, and binds it.

Nobody else has to agree. A pod can be bound once; whoever wins has it, be it this node, another, or the node of the job
that was submitted for it. A job that is left without its pod looks for another in the same way, or is taken back by the
provisioner while it waits.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import time
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.placement import SCHEDULER
from pinnace.errors import ApiError, PinnaceError
from pinnace.kube.client import API_FAILURES, API_UNREACHABLE
from pinnace.podjobs import pod_status
from pinnace.podjobs.actions import Kubernetes
from pinnace.podjobs.reconciler import NUMBER
from pinnace.podjobs.reuse import likeness, waits, window
from pinnace.podjobs.settings import Settings
from pinnace.podjobs.submission import comment, tenant_of
from pinnace.slurm.commands import Slurm

if TYPE_CHECKING:
    from pinnace.kube.client import Api
    from pinnace.spec import NodeSpec, Tenant

    Object = dict[str, Any]

MANY = 32  # pods that are looked at for one that may follow: whoever else looks shall find others
OF_A_JOB = "batch.kubernetes.io/controller-uid"
PAUSES = (0.0, 0.0, 0.0, 0.1, 0.2, 0.3, 0.4)  # seconds before each look; a controller makes a pod when another ends


def bind(api: Api, tenant: Tenant, node: str, notes: dict[str, str] | None = None) -> None:
    """Give a pod its node, as a scheduler does; the pod gets the annotations."""
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    metadata = {"name": tenant.name, "uid": tenant.uid, "annotations": notes or {}}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
    api.request("POST", f"{tenant.path}/binding", body)


class Succession:
    """The pods of one node, one after the other."""

    def __init__(self, node: NodeSpec, api: Api) -> None:
        self.node, self.api = node, api
        provisioning = node.cluster.provisioning
        self.settings = Settings.from_json(provisioning.settings) if provisioning else Settings()
        self.given = provisioning.options if provisioning else ()
        self.begin = time.monotonic()
        self.until = self.begin + self.settings.reuse_seconds
        self.job = os.environ.get("SLURM_JOB_ID", "0")
        self.owners: list[Object] | None = None
        self.before: list[str] = []
        self.dice = random.SystemRandom()

    @property
    def open(self) -> bool:
        """Whether it is not too late for more."""
        return time.monotonic() < self.until

    def present(self) -> Object | None:
        """The pod that is here and has not ended."""
        listing = self.api.get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.node.name}")
        return next((pod for pod in listing["items"] if not pod_status.is_terminal(pod)), None)

    def follow(self, pod: Object) -> Object | None:
        """Take a pod like this one that waits, if it is not too late. It may not have been made yet."""
        if not self.open:
            return None
        with contextlib.suppress(*API_FAILURES):
            if self.owners is None:
                self.owners = Kubernetes(self.api).owners(pod)
            kind = self._likeness(pod)
            if kind:
                self.until = self.begin + window(pod, self.owners, self.settings, self.given)
            for pause in PAUSES if kind and self.open else ():
                time.sleep(pause)
                candidates = [waiting for waiting in self._waiting(pod) if self._likeness(waiting) == kind]
                if candidates and (taken := self._take(self.dice.choice(candidates))):
                    if pod["spec"].get("nodeName") == self.node.name:
                        self.before.append(pod["metadata"]["name"])
                    self._announce(taken)
                    return taken
                if not candidates and not pod_status.is_terminal(pod):
                    return None  # its controller makes another when it has ended
        return None

    def _likeness(self, pod: Object) -> str:
        return likeness(pod, self.owners or (), self.settings, self.given)

    def _waiting(self, pod: Object) -> list[Object]:
        selector = f"spec.schedulerName%3D{SCHEDULER},spec.nodeName%3D,status.phase%3DPending"
        where = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods?fieldSelector={selector}&limit={MANY}"
        if job := pod["metadata"].get("labels", {}).get(OF_A_JOB):  # those of others shall not be all that is found
            where += f"&labelSelector={OF_A_JOB}%3D{job}"
        found: list[Object] = self.api.get(where)["items"]
        return [other for other in found if waits(other)]

    def _take(self, pod: Object) -> Object | None:
        try:
            bind(self.api, tenant_of(pod), self.node.name, {NUMBER: self.job})
        except ApiError as error:
            if error.code in {http.HTTPStatus.CONFLICT, http.HTTPStatus.NOT_FOUND}:
                return None
            raise
        return pod | {"spec": pod["spec"] | {"nodeName": self.node.name}}

    def _announce(self, pod: Object) -> None:
        """Let Slurm and the pod say where it runs. Nothing depends on it."""
        words = [comment(self.node.cluster.name, pod, self.owners or ())]
        words += ["after", *self.before] if self.before else []
        with contextlib.suppress(PinnaceError, *API_UNREACHABLE):
            Slurm().rename(int(self.job), pod["metadata"]["name"], " ".join(words))
            Kubernetes(self.api).event(pod, "Normal", "Followed", f"runs in job {self.job}, which had room for it")
