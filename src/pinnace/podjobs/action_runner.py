"""Does what ``podjobs.reconciler`` has planned. Every action may be done twice: the next plan repeats what failed."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any

from pinnace.errors import SlurmError
from pinnace.kube.client import timestamp
from pinnace.kube.conditions import condition
from pinnace.kube.events import WARNING
from pinnace.kube.pods import is_terminal
from pinnace.podjobs import actions, pod_status, reconciler
from pinnace.podjobs.reconciler import NOT_KNOWN
from pinnace.podjobs.submission import claimed, submitted_for
from pinnace.removal import remove_tree
from pinnace.spec import HEAD, NodeRecord
from pinnace.spec.records import remove_record
from pinnace.timeline.recorder import node_marks, submission_marks

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.podjobs.actions import Action
    from pinnace.podjobs.pod_api import PodApi
    from pinnace.podjobs.reconciler import Memory
    from pinnace.slurm.commands import Slurm
    from pinnace.slurm.jobs import AccountedJob
    from pinnace.slurm.states import JobState
    from pinnace.spec import ClusterSpec

    Object = dict[str, Any]

SACCT_INTERVAL = 1.0  # seconds between calls of sacct, at least

log = logging.getLogger("pinnace.podjobs")


class ActionRunner:
    """Does the actions of a plan, one at a time."""

    def __init__(self, pod_api: Callable[[], PodApi], slurm: Slurm, spec: ClusterSpec, memory: Memory) -> None:
        self._pod_api = pod_api
        self.slurm = slurm
        self.spec = spec
        self.memory = memory

    @property
    def pod_api(self) -> PodApi:
        return self._pod_api()

    def run(self, action: Action) -> None:
        match action:
            case actions.Cancel():
                self._cancel(action)
            case actions.Tell(pod=pod, text=text):
                self._tell(pod, text)
            case actions.Number(pod=pod, job=job):
                self.pod_api.annotate(pod, {reconciler.NUMBER: str(job)})
            case actions.Fail(pod=pod, job=job, state=state):
                self._fail(pod, job, state)
            case actions.Explain(pod=pod, job=job, state=state):
                status = pod_status.explanation(job, state, timestamp())
                self.pod_api.set_status(pod, status)
                self.pod_api.event(pod, WARNING, status["reason"], status["message"])
            case actions.Remove(pod=pod):
                self.pod_api.delete_now(pod)
            case actions.AskAccounting(jobs=jobs):
                self._ask_accounting(jobs)
            case actions.Retire(node=node):
                address = str(self.spec.ranges.node(HEAD))
                self.pod_api.set_node_status(node, reconciler.retirement(address, timestamp()))
            case actions.Forget(node=node):
                self.pod_api.delete_node(node)
                self._remove_files(node)
            case actions.FreeIndex(index=index, node=node):
                holder = NodeRecord.read(self.spec.node_file(index))
                if holder and holder.name == node:  # it may have been freed and taken
                    remove_record(self.spec.nodes, index)
                self._remove_secrets(node)

    def _cancel(self, action: actions.Cancel) -> None:
        """End jobs, if Slurm still says that they are this cluster's."""
        log.info("ending job %s: %s", ", ".join(map(str, action.jobs)), action.why)
        options = ["--signal=KILL", "--full"] if action.kill else []
        options += ["--state=PENDING"] if action.only_pending else []
        ended = self.slurm.cancel(
            *action.jobs, ours=lambda text: claimed(text, self.spec.name) is not None, options=options
        )
        self.memory.cancelled |= dict.fromkeys(action.jobs, time.monotonic())
        if left := set(action.jobs) - set(ended):
            log.warning("left alone, because Slurm does not say that it is ours: job %s", ", ".join(map(str, left)))

    def refused(self, pod: Object, text: str) -> None:
        """Say on the pod what Slurm, or we, have against it."""
        self.pod_api.event(pod, WARNING, "Refused", text)
        self.pod_api.set_status(pod, {"conditions": [not_scheduled("SlurmRefused", text)]})

    def _tell(self, pod: Object, text: str) -> None:
        self.pod_api.set_status(pod, {"conditions": [not_scheduled("SlurmPending", text)]})
        self.memory.told[pod["metadata"]["uid"]] = text

    def _fail(self, pod: Object, job: int, state: JobState | None) -> None:
        """Look once more before a pod is called failed: its kubelet may have had the last word."""
        current = self.pod_api.current(pod)
        if current is None or is_terminal(current):
            return
        state = pod_status.read_log(state, self._job_log(job))
        status = pod_status.failure(current, job, state, timestamp())
        log.info("%s/%s: %s", pod["metadata"]["namespace"], pod["metadata"]["name"], status["message"])
        self.pod_api.set_status(pod, status)
        self.pod_api.event(pod, WARNING, status["reason"], status["message"])

    def _job_log(self, job: int) -> str:
        """What Slurm and the node itself have said in the job's output."""
        with contextlib.suppress(OSError):
            return (self.spec.directory / "logs" / f"job-{job}.log").read_text(errors="replace")[-4096:]
        return ""

    def _ask_accounting(self, jobs: tuple[int, ...]) -> None:
        """One call for all. Pods can have us ask again and again, so at least half of the time is for other things."""
        begun = time.monotonic()
        self.memory.ended |= dict.fromkeys(jobs, NOT_KNOWN)
        try:
            self.memory.ended |= {row.id: self._ended(row) for row in self.slurm.sacct(*jobs) if row.id in jobs}
        except SlurmError as error:  # a site may have no accounting
            log.warning("sacct: %s", error)
        now = time.monotonic()
        self.memory.next_accounting = now + max(SACCT_INTERVAL, now - begun)

    def _ended(self, row: AccountedJob) -> reconciler.Ended:
        claims = (claimed(row.comment, self.spec.name), submitted_for(row.submit_line, self.spec.name))
        return reconciler.Ended(state=row.state, claims=frozenset(filter(None, claims)))

    def _remove_secrets(self, node: str) -> None:
        for suffix in ("crt", "key", "kubeconfig"):
            (self.spec.secrets / f"node-{node}.{suffix}").unlink(missing_ok=True)

    def _remove_files(self, node: str) -> None:
        self._remove_secrets(node)
        for directory in (self.spec.pod_logs(node), self.spec.logs(node), self.spec.ranks(node)):
            remove_tree(directory)
        (self.spec.directory / "logs" / f"{node}.log").unlink(missing_ok=True)
        for marks in (node_marks, submission_marks):
            marks(self.spec.directory, node).unlink(missing_ok=True)


def not_scheduled(reason: str, text: str) -> Object:
    """The condition of a pod that has no node yet."""
    return condition("PodScheduled", "False", reason, text)
