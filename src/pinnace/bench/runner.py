"""A run: rounds, in each of them all models in turn, in each of these all tasks. Every sample is kept at once.

In each round another model is first. What fails is recorded with its reason, and the rest goes on; a model that cannot
start twice in a row is left out.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import shutil
import subprocess
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from pinnace.bench.cluster_sessions import OverSession, cluster_session
from pinnace.bench.measurements import Group, Model, TaskKind, command, seconds_of, selected, server_command
from pinnace.bench.parsing import one, parse
from pinnace.bench.preparation import prepare
from pinnace.bench.run_directory import Sample
from pinnace.bench.sessions import bare_session
from pinnace.bench.table import number as number_text
from pinnace.errors import BenchError, PinnaceError
from pinnace.network.listening import PortRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from pinnace.bench.measurements import Server, Task
    from pinnace.bench.run_directory import RunDirectory
    from pinnace.bench.sessions import Session, Site
    from pinnace.cluster.running import Ending

GIVE_UP = 2  # sessions of a model that fail in a row
CONNECT_ATTEMPTS, CONNECT_PAUSE = 20, 0.5  # seconds; a server has to start first
PORT_ATTEMPTS = 3  # the links of a cluster, and other users' programs, have some of the ports
PORTS = "20000-29999"  # of servers, where the site has not said which are open (PINNACE_PORTS)
MANY_LIMIT = 1200.0  # seconds for many pods
# What a session can fail with. Everything else is a fault of ours.
EXPECTED = (PinnaceError, OSError, ValueError, http.client.HTTPException, subprocess.SubprocessError)


class Listener(Protocol):
    """Hears what a run does."""

    def begin(self, text: str) -> None: ...
    def done(self, text: str) -> None: ...
    def failed(self, text: str, hint: str = "") -> None: ...


@dataclass(kw_only=True)
class Runner:
    """One run, from where it stands to its end."""

    run: RunDirectory
    listener: Listener
    ending: Ending = contextlib.nullcontext
    wait_limit: float = 3600.0
    _failures: dict[Model, int] = field(default_factory=dict)
    _done: int = 0
    _total: int = 0

    def execute(self) -> None:
        """Do what is left. Its files on the shared file system are removed in the end, however it ends."""
        directory = self.run.settings.removable_directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            site = prepare(self.run, self.listener, self.ending, wait_limit=self.wait_limit)
            for number, model, tasks in self.left(site):
                self._session(site, number, model, tasks)
        finally:
            with self.ending():
                shutil.rmtree(directory, ignore_errors=True)

    def left(self, site: Site) -> Iterator[tuple[int, Model, list[Task]]]:
        """What has no sample yet: rounds, models and their tasks."""
        plan = list(
            plan_of(site.settings.models, selected(site.settings.only, hosts=len(site.hosts)), site.settings.repeat)
        )
        done = {(sample.round, sample.model, sample.task) for sample in self.run.samples() if not sample.error}
        self._total = sum(len(tasks) for _, _, tasks in plan)
        self._done = len({(n, m, t.name) for n, m, tasks in plan for t in tasks} & done)
        for number, model, tasks in plan:
            missing = [task for task in tasks if (number, model, task.name) not in done]
            if missing and self._failures.get(model, 0) < GIVE_UP:
                yield number, model, missing

    def _session(self, site: Site, number: int, model: Model, tasks: Sequence[Task]) -> None:
        where = f"round {number} of {site.settings.repeat}, {model.label}"
        self.listener.begin(f"{where}: starting")
        left = list(tasks)
        try:
            with self._opened(site, number, model, tasks, lambda: self._settle(site, where)) as session:
                self._failures[model] = 0
                while left:
                    self._task(session, number, left[0], where)
                    left.pop(0)
                    if left:
                        session.check()
        except EXPECTED as error:
            self._failures[model] = self._failures.get(model, 0) + (left == list(tasks))
            message, hint = explained(error)
            for task in left:
                self.run.add(Sample(round=number, model=model, task=task.name, error=message, begin=time.time()))
            self._done += len(left)
            names = ", ".join(task.name for task in left)
            self.listener.failed(f"{where}: {message}{f' (not measured: {names})' if left else ''}", hint)
            if self._failures[model] >= GIVE_UP:
                self.listener.failed(f"{model.label} is left out from now on: it failed {GIVE_UP} times in a row")

    def _opened(
        self, site: Site, number: int, model: Model, tasks: Sequence[Task], settle: Callable[[], None]
    ) -> AbstractContextManager[Session]:
        startup = any(task.kind is TaskKind.STARTUP for task in tasks)
        if model is Model.BARE:
            workload = any(task.kind not in {TaskKind.STARTUP, TaskKind.PODS} for task in tasks)
            return bare_session(site, startup=startup, workload=workload)
        workload = any(
            task.kind not in {TaskKind.STARTUP, TaskKind.PODS, TaskKind.REPLICAS, TaskKind.API} for task in tasks
        )
        claims = any(task.group is Group.FIO for task in tasks)
        return cluster_session(
            site, model, number, startup=startup, workload=workload, claims=claims, ending=self.ending, settle=settle
        )

    def _settle(self, site: Site, where: str) -> None:
        self.listener.begin(f"{where}: settling")
        time.sleep(site.settings.parameters.settle_seconds)

    def _task(self, session: Session, number: int, task: Task, where: str) -> None:
        """One sample, or its error. An error of the session itself is raised."""
        self.listener.begin(f"{where}: {task.name} ({self._done + 1} of {self._total})")
        sample = Sample(round=number, model=session.model, task=task.name, begin=time.time())
        begin, output = time.monotonic(), ""
        try:
            output, values = perform(session, task)
            sample = replace(sample, values=values, seconds=time.monotonic() - begin)
        except EXPECTED as error:
            message, hint = explained(error)
            self.listener.failed(f"{where}: {task.name}: {message}", hint)
            sample = replace(sample, error=message, seconds=time.monotonic() - begin)
        else:
            shown = ", ".join(number_text(values[figure.name]) for figure in task.figures)
            self.listener.done(f"{where}: {task.name} {shown} {task.figures[0].unit}")
        self.run.add(sample, output)
        self._done += 1


def explained(error: BaseException) -> tuple[str, str]:
    if isinstance(error, PinnaceError):
        return error.message, error.hint
    return f"{type(error).__name__}: {error}", ""


def plan_of(models: Sequence[Model], tasks: Sequence[Task], repeat: int) -> Iterator[tuple[int, Model, list[Task]]]:
    """The order of everything: each round begins with another model, so that none is always before another."""
    for number in range(1, repeat + 1):
        first = (number - 1) % len(models)
        for model in (*models[first:], *models[:first]):
            chosen = [task for task in tasks if model in task.models]
            if chosen:
                yield number, model, chosen


def perform(session: Session, task: Task) -> tuple[str, dict[str, float]]:
    """Do a task in a session: what was printed, and the values of its figures."""
    site = session.site
    parameters = site.settings.parameters
    limit = 3 * seconds_of(task, parameters) + 120
    match task.kind:
        case TaskKind.STARTUP:
            if session.startup is None:
                raise BenchError("the start-up was not measured")
            return "", one(task, session.startup)
        case TaskKind.PODS:
            return "", one(task, session.pods_per_second(parameters.pods, MANY_LIMIT))
        case TaskKind.REPLICAS:
            return "", one(task, of_cluster(session).replicas_ready(parameters.replicas, MANY_LIMIT))
        case TaskKind.API:
            return "", one(task, of_cluster(session).api_requests(parameters.api_seconds))
        case TaskKind.DNSPERF:
            output = look_up(of_cluster(session), task, limit)
        case TaskKind.RR | TaskKind.IPERF3:
            output = over_network(session, task, limit)
        case _:
            argv = command(task, parameters, threads=site.threads)
            output = session.run(argv, limit=limit, place=task.place)
    return output, parse(task, output)


def of_cluster(session: Session) -> OverSession:
    """The session of a cluster in a job, which some tasks are about."""
    if not isinstance(session, OverSession):
        raise TypeError(f"{session.model.label} has no cluster to be measured")
    return session


def look_up(session: OverSession, task: Task, limit: float) -> str:
    queries = session.site.directory / "queries"
    queries.write_text(f"kubernetes.default.svc.{session.cluster.directory.spec.domain} A\n")
    argv = command(task, session.site.settings.parameters, threads=1, address=session.dns_server())
    return session.run([*argv, "-d", str(queries)], limit=limit)


def over_network(session: Session, task: Task, limit: float) -> str:
    """A client in the workload, and a server for as long as it takes. If it fails soon, another port is tried."""
    if task.server is None:
        raise ValueError(f"{task.name} has no server")
    *others, last = drawn_ports(PortRange.parse(os.environ.get("PINNACE_PORTS") or PORTS))
    begin = time.monotonic()
    for port in others:
        try:
            return on_port(session, task, task.server, port, limit)
        except (BenchError, ValueError):
            if time.monotonic() - begin > limit:
                raise
            session.check()
    return on_port(session, task, task.server, last, limit)


def drawn_ports(ports: PortRange) -> list[int]:
    """A few ports of a range, by lot."""
    known = range(ports.first, ports.last + 1)
    return random.sample(known, min(PORT_ATTEMPTS, len(known)))


def on_port(session: Session, task: Task, server: Server, port: int, limit: float) -> str:
    """What the client prints with a server on this port."""
    with session.serving(server_command(task, port), server) as address:
        argv = command(task, session.site.settings.parameters, threads=1, address=address, port=port)
        for attempt in range(CONNECT_ATTEMPTS):
            time.sleep(CONNECT_PAUSE)
            try:
                output = session.run(argv, limit=limit)
                parse(task, output)  # iperf3's exit code is 0 also if it found no server
            except (BenchError, ValueError) as error:
                if attempt == CONNECT_ATTEMPTS - 1 or not never_connected(str(error)):
                    raise
            else:
                return output
    raise AssertionError


def never_connected(message: str) -> bool:
    """Whether a client found no server yet."""
    text = message.lower()
    return "refused" in text or "unable to connect" in text or "unable to send control message" in text
