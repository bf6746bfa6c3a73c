"""Before the first round: which hosts there are and what they are, and the tools for them, out of the image."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pinnace import __version__
from pinnace.bench.allocation import HostAllocation, execute, step_argv
from pinnace.bench.cluster_sessions import cluster_session
from pinnace.bench.measurements import FioPlace, Model, TaskKind, direct_probe_argv, selected, stream_elements
from pinnace.bench.sessions import Site
from pinnace.bench.tools import HOW_TO_GET, Tools, copy_argv, needed
from pinnace.cluster.directory import image_store
from pinnace.components.manifest import required
from pinnace.errors import BenchError, ImageError, PinnaceError, SlurmError
from pinnace.images.reference import parse
from pinnace.interpreter import python_argv
from pinnace.slurm.commands import Slurm
from pinnace.slurm.sizes import parse_mebibytes

if TYPE_CHECKING:
    from pinnace.bench.run_directory import RunDirectory, Settings
    from pinnace.bench.runner import Listener
    from pinnace.bench.sessions import Session
    from pinnace.cluster.running import Ending

MACHINE_LIMIT = 60.0  # seconds for a host to describe itself
COPY_LIMIT = 300.0  # seconds for the tools to be copied
LOCAL = "localhost/"
LEAST_ROUNDS = 5


def check_images(settings: Settings) -> None:
    """Images of the user's own store have to be in it, before anything is submitted."""
    for name in {settings.image, settings.startup_image}:
        if name.startswith(LOCAL):
            try:
                image_store().find(parse(name))
            except ImageError as error:
                raise ImageError(f"there is no image {name}, which has the tools", hint=HOW_TO_GET) from error


def prepare(run: RunDirectory, listener: Listener, ending: Ending, *, wait_limit: float) -> Site:
    """What all sessions share. The hosts of a run that is resumed are those that it had before."""
    settings = run.settings
    check_images(settings)
    hosts = run.machine.get("hosts", [])
    listener.begin("hosts")
    site, described = find_hosts(settings, hosts, wait_limit=wait_limit)
    listener.done(f"hosts: {', '.join(site.hosts)}")
    tools = needed(selected(settings.only, hosts=len(site.hosts)))
    parameters = settings.parameters
    listener.begin("images")
    site, direct = with_images(site, tools, ending)
    listener.done(f"images: on {', '.join(site.hosts)}")
    if tools:
        listener.done(f"tools: {', '.join(tools)}, copied from {settings.image}")
        elements = stream_elements(caches=described[0]["caches"], memory=job_memory(settings, described[0]))
        parameters = replace(parameters, elements=elements, direct=direct)
    settings = replace(settings, parameters=parameters)
    run.update(
        settings=settings.to_json(),
        machine={"hosts": list(site.hosts), "cpus": site.cpus, "descriptions": described},
        versions=versions(),
    )
    return replace(site, settings=settings)


def find_hosts(settings: Settings, hosts: list[str], *, wait_limit: float) -> tuple[Site, list[dict[str, Any]]]:
    """The hosts that Slurm gives for the user's options, which all further jobs are to run on."""
    empty = Site(settings=settings, hosts=tuple(hosts), cpus=1, addresses={}, wait_limit=wait_limit)
    options = empty.options(*hosts) if hosts else settings.options
    with HostAllocation(options, settings.nodes, limit=wait_limit) as allocation:
        names = tuple(host.name for host in allocation.hosts)
        cpus = min(host.cpus for host in allocation.hosts)
        described = [describe(allocation.job, name, cpus, settings.directory) for name in names]
    return replace(empty, hosts=names, cpus=cpus, threads=described[0]["threads"]), described


def describe(job: int, host: str, cpus: int, directory: str) -> dict[str, Any]:
    argv = step_argv(job, host, python_argv("pinnace.bench.machine"), cpus=cpus, directory=directory)
    return dict(json.loads(execute(argv, limit=MACHINE_LIMIT)))


def with_images(site: Site, tools: list[str], ending: Ending) -> tuple[Site, bool]:
    """Start a pod on every host, which brings its image; copy the tools; whether fio can go around the page cache."""
    claims = TaskKind.FIO in tools
    with cluster_session(
        site, Model.OVER, 0, startup=False, workload=bool(tools), claims=claims, ending=ending
    ) as session:  # fmt: skip
        records = session.cluster.directory.records()
        addresses = {record.name: record.address for record in records}
        if missing := [host for host in site.hosts if host not in addresses]:
            raise BenchError(f"the node of {', '.join(missing)} has another name than its host")
        for host in site.hosts:
            session.measure_startup(node=host)
        site = replace(site, addresses=addresses)
        if not tools:
            return site, False
        target = site.directory / "tools"
        printed = session.run(copy_argv(target, tools), limit=COPY_LIMIT)
        found = Tools.copied(target, printed, tools, site.settings.image)
        return replace(site, tools=found), claims and can_write_directly(session)


def can_write_directly(session: Session) -> bool:
    """Whether all places of fio have direct I/O; then all use it, otherwise none."""
    try:
        for place in (FioPlace.DIRECTORY, FioPlace.SHARED, FioPlace.SCRATCH, FioPlace.ROOT):
            session.run(direct_probe_argv(), limit=MACHINE_LIMIT, place=place)
    except PinnaceError:
        session.check()
        return False
    return True


def job_memory(settings: Settings, described: dict[str, Any]) -> int:
    """What a job has on a host, in bytes."""
    asked = settings.options.get("mem")
    whole = int(described["memory"])
    return min(whole, parse_mebibytes(asked) << 20) if asked and asked != "0" else whole


def versions() -> dict[str, str]:
    """Of all that takes part."""
    try:
        slurm = Slurm().cli("sinfo", "--version").strip().removeprefix("slurm ")
    except SlurmError:
        slurm = "unknown"
    components = {component.name: component.version for component in required()}
    own = {
        "pinnace": __version__,
        "Slurm": slurm,
        "Python": platform.python_version(),
        "login node": os.uname().release,
    }
    return own | components


def notes(about: dict[str, Any]) -> list[str]:
    """What a reader has to know about how these figures were taken."""
    settings, machine = about["settings"], about["machine"]
    parameters = settings["parameters"]
    found = []
    if settings["repeat"] < LEAST_ROUNDS:
        found.append(f"So few rounds ({settings['repeat']}) do not tell small differences from noise.")
    if len(machine.get("hosts", [])) == 1:
        found.append("There was one host: the network was not measured (it needs --nodes 2).")
    descriptions = machine.get("descriptions") or [{}]
    if 8 * parameters["elements"] < 4 * descriptions[0].get("caches", 0):
        found.append("STREAM's arrays are smaller than four times the caches: give more memory with --mem.")
    if not parameters["direct"]:
        found.append("fio used the page cache: a file system of these places has no direct I/O.")
    load = descriptions[0].get("load", 0.0)
    if load > 1:
        found.append(f"The load of {descriptions[0]['host']} was {load:.1f} before the run: other programs took part.")
    return found
