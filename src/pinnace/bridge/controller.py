"""The bridge as a process: watches the API, keeps what it has seen, and lets workers do one step for each object.

No object is worked on twice at once; one that changes meanwhile is looked at again. What fails is tried again, later
each time.
"""

from __future__ import annotations

import http
import http.client
import logging
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

from pinnace.bridge.connections import Policy, Slurms
from pinnace.bridge.crds import KINDS, SLURMJOB, definitions
from pinnace.bridge.predecessors import Predecessors
from pinnace.bridge.reconciler import Reconciler, Settings
from pinnace.bridge.slurmjob import Job
from pinnace.errors import ApiError, PinnaceError, SlurmUnreachableError
from pinnace.kube.cache import Cache, namespaced_name
from pinnace.kube.client import API_UNREACHABLE, Api
from pinnace.kube.leader_election import LeaderElection
from pinnace.kube.watch import Changed, Listed, watch
from pinnace.kube.workqueue import WorkQueue, namespace_of
from pinnace.validation import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.bridge.crds import Resource
    from pinnace.kube.access import Access
    from pinnace.kube.workqueue import Key

    Object = dict[str, Any]

WORKERS = 8
WORKERS_PER_NAMESPACE = 4  # at a time: slow servers and large files of its jobs hold up no others
RETRY_DELAYS = (0.1, 0.5, 2.0, 5.0, 15.0, 60.0)  # seconds before an object is reconciled again that has failed
LOGGED_FAILURES = 3  # of an object, that are logged; then
LOGGED_EVERY = 60  # one in so many, which is one in an hour
LEASE_RETRY_DELAY = 5.0  # seconds before a namespace is tried again that we may not lead
SHUTDOWN_LIMIT = 5.0  # seconds for work that is under way: the API may have ended before us
RELEASE_LIMIT = 2.0  # seconds to give the Leases back
CRD_LIMIT = 60.0  # seconds until a new kind is served
CRD_INTERVAL = 0.1  # seconds between looks whether it is
INPUT_FIELDS = {"script", "arguments", "env", "inputs"}  # of a spec: the large ones
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

log = logging.getLogger(__name__)


class Controller:
    """Everything together."""

    def __init__(
        self,
        access: Access,
        policy: Policy,
        settings: Settings,
        *,
        namespaces: tuple[str, ...] = (),
        kinds: tuple[Resource, ...] = KINDS,
    ) -> None:
        self._access, self._namespaces, self._kinds = access, namespaces, kinds
        self._local = threading.local()
        self._cache = Cache(*(resource.name for resource in kinds), slim=without_inputs)
        self._dependants: dict[str, set[str]] = {}
        self._in_slurm: dict[str, set[str]] = {}  # names of jobs that are in Slurm or on their way, by namespace
        self._led: set[str] = set()
        self._queue = WorkQueue(RETRY_DELAYS, per_namespace=WORKERS_PER_NAMESPACE)
        self.slurms = Slurms(self.api, policy, lambda key: self._queue.add((SLURMJOB.name, key)))
        self._reconciler = Reconciler(
            self.api, self.slurms, settings, find=self._find, note=self._note_job, others=self._count_others
        )
        self._predecessors = Predecessors(self.api, self.slurms)
        self._resources = {resource.name: resource for resource in kinds}
        self._elections: list[LeaderElection] = []
        self.leading = threading.Event()

    def api(self) -> Api:
        """One connection for each thread."""
        if not hasattr(self._local, "api"):
            self._local.api = Api(self._access)
        api: Api = self._local.api
        return api

    def install(self) -> None:
        """Make the kinds known to the API, or bring them up to date, and wait until they are served."""
        for body in definitions():
            if body["metadata"]["name"] in self._resources:
                self.api().apply(f"{CRDS}/{body['metadata']['name']}", body, manager="pinnace-bridge")
        deadline = time.monotonic() + CRD_LIMIT
        for resource in self._kinds:
            while not self._is_served(resource):
                if time.monotonic() > deadline:
                    raise PinnaceError(f"{resource.name} is not served by the API after {CRD_LIMIT:.0f} s")
                time.sleep(CRD_INTERVAL)

    def _is_served(self, resource: Resource) -> bool:
        try:
            self.api().get(f"{resource.path(self._namespaces[0] if self._namespaces else '')}?limit=1")
        except ApiError as error:
            if error.code in {http.HTTPStatus.NOT_FOUND, http.HTTPStatus.SERVICE_UNAVAILABLE}:
                return False
            raise
        return True

    def run(self) -> None:
        """Until a signal ends it. What is under way then is finished, and others may lead."""
        for namespace in self._namespaces or ("",):
            threading.Thread(target=self._lead, args=(namespace,), name=f"lease {namespace}", daemon=True).start()
        for _ in range(WORKERS):
            threading.Thread(target=self._worker, daemon=True).start()
        try:
            threading.Event().wait()
        finally:
            self._queue.shut_down(SHUTDOWN_LIMIT)
            self._release()

    def _release(self) -> None:
        threads = [threading.Thread(target=election.release, daemon=True) for election in self._elections]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + RELEASE_LIMIT
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _lead(self, namespace: str) -> None:
        """Work for a namespace while its Lease is ours. Of several, one that is lost is no reason to leave the others.

        Whoever may write Leases in a namespace, or take the bridge's rights there away, only harms that namespace.
        """
        election, watching = LeaderElection(self.api, namespace), False
        while True:
            try:
                election.acquire()
                self._led.add(namespace)
                self.leading.set()
                if not watching:
                    self._watch(election, namespace)
                    watching = True
                for key in self._keys_of(namespace):
                    self._queue.add(key)
                election.renew()
            except PinnaceError as error:
                self._led.discard(namespace)
                if len(self._namespaces) < 2:
                    raise
                log.warning("namespace %s is left alone: %s", namespace, printable(error.message))
                time.sleep(LEASE_RETRY_DELAY)

    def _watch(self, election: LeaderElection, namespace: str) -> None:
        self._elections.append(election)
        for resource in self._kinds:
            scope = f"{resource.name} {namespace}".strip()
            watch(self._access, scope, self._tell(resource, namespace), path=resource.path(namespace))

    def _keys_of(self, namespace: str) -> list[Key]:
        keys = [(kind, name) for kind in self._resources for name in self._cache.keys(kind)]
        return [key for key in keys if namespace_of(key) == namespace]

    def _is_led(self, key: Key) -> bool:
        return "" in self._led or namespace_of(key) in self._led

    # --- what there is ------------------------------------------------------------------------------------------

    def _tell(self, resource: Resource, namespace: str) -> Callable[[Listed | Changed], None]:
        def tell(change: Listed | Changed) -> None:
            if isinstance(change, Listed):
                for thing in self._cache.missing(resource.name, change.objects, namespace=namespace):
                    self._hear(resource, thing, gone=True)
                for thing in change.objects:
                    # A list's items do not say what they are.
                    self._hear(resource, thing | {"apiVersion": resource.api_version, "kind": resource.kind})
            else:
                self._hear(resource, change.object, gone=change.gone)

        return tell

    def _hear(self, resource: Resource, thing: Object, *, gone: bool = False) -> None:
        """Note what the API tells of an object."""
        try:
            self._note(resource, thing, gone=gone)
        except Exception as error:  # noqa: BLE001 - one object that we do not understand must not hide the others
            key = (resource.name, namespaced_name(thing))
            self._log_failure(key, error)
            self._queue.add_rate_limited(key)

    def _note_job(self, body: Object) -> None:
        self._note(SLURMJOB, body)

    def _note(self, resource: Resource, thing: Object, *, gone: bool = False) -> None:
        """Remember an object unless we know a later version, and have it looked at."""
        key, metadata = (resource.name, namespaced_name(thing)), thing["metadata"]
        gone = gone or ("deletionTimestamp" in metadata and not metadata.get("finalizers"))
        with self._cache.lock:  # what is derived from an object below belongs to the same version of it
            if gone:
                self._cache.delete(resource.name, thing)
            elif not self._cache.update(resource.name, thing):
                return
            self._queue.forget(key)
            followers = self._relatives(resource, thing, gone=gone)
            if resource is SLURMJOB:
                self._count(Job(thing), gone=gone)
        if gone and resource is SLURMJOB:
            self._reconciler.gone(Job(thing))
        self._queue.add(key)
        for follower in followers:
            self._queue.add(follower)

    def _count(self, job: Job, *, gone: bool) -> None:
        names = self._in_slurm.setdefault(job.namespace, set())
        if not gone and not job.finished and (job.intent or job.id is not None):
            names.add(job.name)
            return
        names.discard(job.name)
        if not names:
            del self._in_slurm[job.namespace]

    def _count_others(self, job: Job) -> int:
        """How many other jobs of its namespace are in Slurm or on their way."""
        with self._cache.lock:
            names = self._in_slurm.get(job.namespace, set())
            return len(names) - (job.name in names)

    def _relatives(self, resource: Resource, thing: Object, *, gone: bool) -> list[Key]:
        """Who else is concerned: jobs that depend on this one, and the predecessors' object that it was made for."""
        if resource is not SLURMJOB:
            return []
        name = namespaced_name(thing)
        namespace = thing["metadata"]["namespace"]
        for dependency in thing["spec"].get("dependsOn", ()):
            on = f"{namespace}/{dependency['name']}"
            if not gone:
                self._dependants.setdefault(on, set()).add(name)
            elif on in self._dependants:
                self._dependants[on].discard(name)
                if not self._dependants[on]:
                    del self._dependants[on]
        relatives = [(SLURMJOB.name, dependant) for dependant in self._dependants.get(name, ())]
        for owner in thing["metadata"].get("ownerReferences", ()):
            of = (owner["apiVersion"], owner["kind"])
            kinds = (other for other in self._kinds if (other.api_version, other.kind) == of)
            relatives += [(other.name, f"{namespace}/{owner['name']}") for other in kinds]
        return relatives

    def _find(self, name: str) -> Job | None:
        body = self._cache.get(SLURMJOB.name, name)
        return Job(body) if body else None

    # --- what is done -------------------------------------------------------------------------------------------

    def _worker(self) -> None:
        while True:
            self._queue.process_next(self._reconcile, self._failed)

    def _reconcile(self, key: Key) -> float | None:
        """One step for an object. Seconds after which it wants another; None: when it changes."""
        thing = self._cache.get(*key)
        if thing is None or not self._is_led(key):
            return None
        resource = self._resources[key[0]]
        if resource is SLURMJOB:
            return self._reconciler.step(Job(thing))
        return self._predecessors.step(resource, thing, self._find(self._predecessors.child_key(resource, thing)))

    def _failed(self, key: Key, error: Exception) -> None:
        if not isinstance(error, (PinnaceError, *API_UNREACHABLE)) and not self._queue.num_requeues(key):
            traceback.print_exception(error)
        self._log_failure(key, error)

    def _log_failure(self, key: Key, error: Exception) -> None:
        """Log what went wrong with an object, the first times and then rarely: a tenant could fill the log."""
        failed = self._queue.num_requeues(key) + 1
        usual = isinstance(error, ApiError) and error.code in {http.HTTPStatus.CONFLICT, http.HTTPStatus.NOT_FOUND}
        often = failed > LOGGED_FAILURES and failed % LOGGED_EVERY
        if not usual and not often and not isinstance(error, SlurmUnreachableError):  # of that the object itself tells
            log.warning("%s %s: %s", *key, printable(str(error)) or type(error).__name__)


def without_inputs(thing: Object) -> Object:
    """An object without what nobody asks for once its job has ended."""
    if "completionTime" not in (thing.get("status") or {}):
        return thing
    return thing | {"spec": {name: value for name, value in thing["spec"].items() if name not in INPUT_FIELDS}}
