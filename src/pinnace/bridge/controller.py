"""The bridge as a process: watches the API, keeps what it has seen, and lets workers do one step for each object.

No object is worked on twice at once; one that changes meanwhile is looked at again. What fails is tried again, later
each time.
"""

from __future__ import annotations

import collections
import heapq
import http
import http.client
import logging
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

from pinnace.bridge.backend import UnreachableError
from pinnace.bridge.connections import Connections, Policy
from pinnace.bridge.crds import KINDS, SLURMJOB, definitions
from pinnace.bridge.predecessors import Predecessors
from pinnace.bridge.reconciler import Reconciler, Settings
from pinnace.bridge.slurmjob import SlurmJob as Job
from pinnace.errors import PinnaceError
from pinnace.kube.client import Api, ApiError
from pinnace.kube.lease import Lease
from pinnace.kube.watch import Changed, Listed, watch
from pinnace.validation import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.bridge.crds import Resource
    from pinnace.kube.access import Access

    Object = dict[str, Any]
    Key = tuple[str, str]  # a kind's name, an object's namespace and name

WORKERS = 8
OF_ONE = 4  # workers that may be busy with one namespace: slow servers and large files of its jobs hold up no others
LEFT_ALONE = 5.0  # seconds before a namespace is tried again that we may not lead
LOGGED = 3  # tries of an object that are logged; then one in an hour
LONGEST_DELAY = 3600.0  # seconds after which an object is looked at, however much later it is due
RETRY = (0.1, 0.5, 2.0, 5.0, 15.0, 60.0)  # seconds before try n + 1
ENDING = 5.0  # seconds for what is under way at the end: the API may have ended before us
RELEASING = 2.0  # seconds to give the Leases back
CRD_LIMIT = 60.0  # seconds until a new kind is served
LARGE = {"script", "arguments", "env", "inputs"}  # what nobody asks for once a job has ended
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

log = logging.getLogger(__name__)


class Work:
    """What is to be looked at, and when. Namespaces take turns, however much is to be done for one of them."""

    def __init__(self) -> None:
        self._ready = threading.Condition()
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        self._waiting: collections.OrderedDict[str, collections.deque[Key]] = collections.OrderedDict()
        self._busy: set[Key] = set()
        self._of: collections.Counter[str] = collections.Counter()  # how many are busy with a namespace
        self._again: set[Key] = set()
        self._closed = False

    def add(self, key: Key, delay: float = 0.0) -> None:
        """Have one looked at after so many seconds, or earlier, which is no harm.

        Objects say delays of any length, and ``Condition.wait`` raises OverflowError for those of some centuries.
        """
        with self._ready:
            when = time.monotonic() + min(delay, LONGEST_DELAY)
            if when < self._due.get(key, float("inf")):
                self._due[key] = when
                heapq.heappush(self._heap, (when, key))
                self._ready.notify()

    def take(self) -> Key:
        """The next one that is due. One that somebody works on is due again as soon as that is done."""
        with self._ready:
            while True:
                self._collect()
                if not self._closed and (key := self._next()):
                    return key
                known = self._heap and not self._closed
                self._ready.wait(max(0.0, self._heap[0][0] - time.monotonic()) if known else None)

    def _collect(self) -> None:
        """Sort what is due by namespace."""
        while self._heap and self._heap[0][0] <= time.monotonic():
            when, key = heapq.heappop(self._heap)
            if self._due.get(key) != when:
                continue  # it was brought forward
            self._due[key] = float("-inf")  # it waits already
            self._waiting.setdefault(namespace_of(key), collections.deque()).append(key)

    def _next(self) -> Key | None:
        """One of the namespace that has waited longest, of those that have not too many workers already."""
        for namespace, keys in self._waiting.items():
            if self._of[namespace] >= OF_ONE:
                continue
            key = keys.popleft()
            del self._due[key]
            self._waiting.move_to_end(namespace)
            if not keys:
                del self._waiting[namespace]
            if key in self._busy:
                self._again.add(key)
                return self._next()
            self._busy.add(key)
            self._of[namespace] += 1
            return key
        return None

    def done(self, key: Key) -> None:
        with self._ready:
            self._busy.discard(key)
            self._of[namespace_of(key)] -= 1
            if not self._of[namespace_of(key)]:
                del self._of[namespace_of(key)]
            self._ready.notify_all()
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def close(self) -> None:
        """Let nobody begin anything any more, and wait a while for those who are at it."""
        with self._ready:
            self._closed = True
            self._ready.wait_for(lambda: not self._busy, ENDING)


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
        self._lock = threading.Lock()
        self._known: dict[Key, Object] = {}
        self._dependants: dict[str, set[str]] = {}
        self._in_slurm: dict[str, set[str]] = {}  # names of jobs that are in Slurm or on their way, by namespace
        self._led: set[str] = set()
        self._tries: dict[Key, int] = {}
        self._work = Work()
        self.slurms = Connections(self.api, policy, lambda key: self._work.add((SLURMJOB.name, key)))
        self._reconciler = Reconciler(
            self.api, self.slurms, settings, find=self._find, note=self._note_job, others=self._count_others
        )
        self._predecessors = Predecessors(self.api, self.slurms)
        self._resources = {resource.name: resource for resource in kinds}
        self._leases: list[Lease] = []
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
                path = f"{CRDS}/{body['metadata']['name']}?fieldManager=pinnace-bridge&force=true"
                self.api().request("PATCH", path, body, content_type="application/apply-patch+yaml")
        deadline = time.monotonic() + CRD_LIMIT
        for resource in self._kinds:
            while not self._is_served(resource):
                if time.monotonic() > deadline:
                    raise PinnaceError(f"{resource.name} is not served by the API after {CRD_LIMIT:.0f} s")
                time.sleep(0.1)

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
            self._work.close()
            self._release()

    def _release(self) -> None:
        threads = [threading.Thread(target=lease.release, daemon=True) for lease in self._leases]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + RELEASING
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _lead(self, namespace: str) -> None:
        """Work for a namespace while its Lease is ours. Of several, one that is lost is no reason to leave the others.

        Whoever may write Leases in a namespace, or take the bridge's rights there away, only harms that namespace.
        """
        lease, watching = Lease(self.api, namespace), False
        while True:
            try:
                lease.acquire()
                self._led.add(namespace)
                self.leading.set()
                if not watching:
                    self._watch(lease, namespace)
                    watching = True
                for key in self._keys_of(namespace):
                    self._work.add(key)
                lease.hold()
            except PinnaceError as error:
                self._led.discard(namespace)
                if len(self._namespaces) < 2:
                    raise
                log.warning("namespace %s is left alone: %s", namespace, printable(error.message))
                time.sleep(LEFT_ALONE)

    def _watch(self, lease: Lease, namespace: str) -> None:
        self._leases.append(lease)
        for resource in self._kinds:
            scope = f"{resource.name} {namespace}".strip()
            watch(self._access, scope, self._tell(resource, namespace), path=resource.path(namespace))

    def _keys_of(self, namespace: str) -> list[Key]:
        with self._lock:
            return [key for key in self._known if namespace_of(key) == namespace]

    def _is_led(self, key: Key) -> bool:
        return "" in self._led or namespace_of(key) in self._led

    # --- what there is ------------------------------------------------------------------------------------------

    def _tell(self, resource: Resource, namespace: str) -> Callable[[Listed | Changed], None]:
        def tell(change: Listed | Changed) -> None:
            if isinstance(change, Listed):
                self._forget_missing(resource, namespace, {key_of(thing) for thing in change.objects})
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
            self._again((resource.name, key_of(thing)), error)

    def _forget_missing(self, resource: Resource, namespace: str, present: set[str]) -> None:
        with self._lock:
            mine = [(key, thing) for key, thing in self._known.items() if key[0] == resource.name]
        for key, thing in mine:
            if key[1] not in present and (not namespace or key[1].startswith(f"{namespace}/")):
                self._hear(resource, thing, gone=True)

    def _note_job(self, body: Object) -> None:
        self._note(SLURMJOB, body)

    def _note(self, resource: Resource, thing: Object, *, gone: bool = False) -> None:
        """Remember an object unless we know a later version, and have it looked at."""
        key, metadata = (resource.name, key_of(thing)), thing["metadata"]
        metadata.pop("managedFields", None)  # large, and nobody asks for it
        if "completionTime" in (thing.get("status") or {}):
            thing = thing | {"spec": {name: value for name, value in thing["spec"].items() if name not in LARGE}}
        gone = gone or ("deletionTimestamp" in metadata and not metadata.get("finalizers"))
        with self._lock:
            known = self._known.get(key)
            if gone:
                self._known.pop(key, None)
            elif known is None or known["metadata"]["uid"] != metadata["uid"] or version(known) < version(thing):
                self._known[key] = thing
            elif version(known) > version(thing):
                return
            self._tries.pop(key, None)
            followers = self._relatives(resource, thing, gone=gone)
            if resource is SLURMJOB:
                self._count(Job(thing), gone=gone)
        if gone and resource is SLURMJOB:
            self._reconciler.gone(Job(thing))
        self._work.add(key)
        for follower in followers:
            self._work.add(follower)

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
        with self._lock:
            names = self._in_slurm.get(job.namespace, set())
            return len(names) - (job.name in names)

    def _relatives(self, resource: Resource, thing: Object, *, gone: bool) -> list[Key]:
        """Who else is concerned: jobs that depend on this one, and the predecessors' object that it was made for."""
        if resource is not SLURMJOB:
            return []
        name = key_of(thing)
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
        with self._lock:
            body = self._known.get((SLURMJOB.name, name))
        return Job(body) if body else None

    # --- what is done -------------------------------------------------------------------------------------------

    def _worker(self) -> None:
        while True:
            key = self._work.take()
            try:
                delay = self._step(key)
                self._tries.pop(key, None)
                if delay is not None:
                    self._work.add(key, delay)
            except (ApiError, OSError, http.client.HTTPException, PinnaceError) as error:
                self._again(key, error)
            except Exception as error:  # noqa: BLE001 - one object that we do not understand must not stop the others
                if key not in self._tries:  # once: a tenant could fill the log
                    traceback.print_exc()
                self._again(key, error)
            finally:
                self._work.done(key)

    def _step(self, key: Key) -> float | None:
        with self._lock:
            thing = self._known.get(key)
        if thing is None or not self._is_led(key):
            return None
        resource = self._resources[key[0]]
        if resource is SLURMJOB:
            return self._reconciler.step(Job(thing))
        return self._predecessors.step(resource, thing, self._find(self._predecessors.child_key(resource, thing)))

    def _again(self, key: Key, error: Exception) -> None:
        tried = self._tries[key] = self._tries.get(key, 0) + 1
        usual = isinstance(error, ApiError) and error.code in {http.HTTPStatus.CONFLICT, http.HTTPStatus.NOT_FOUND}
        often = tried > LOGGED and tried % 60
        if not usual and not often and not isinstance(error, UnreachableError):  # of that the object itself tells
            log.warning("%s %s: %s", *key, printable(str(error)) or type(error).__name__)
        self._work.add(key, RETRY[min(tried, len(RETRY)) - 1])


def key_of(thing: Object) -> str:
    return f"{thing['metadata']['namespace']}/{thing['metadata']['name']}"


def namespace_of(key: Key) -> str:
    return key[1].partition("/")[0]


def version(thing: Object) -> int:
    return int(thing["metadata"]["resourceVersion"])
