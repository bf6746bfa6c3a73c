"""From the agent's command line to its node: what Slurm gave us, whether this host can be a node, and which one.

    python -m pinnace.node --cluster DIRECTORY [--index N --name NAME | --join [--as NAME] [--pod NS/NAME/UID]]

A node that joins later takes a free index, and is named after its job: several may run on one host. If it is for one
pod, it ends with it, and with its exit code (see ``podjobs.pod_runner``).
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.controlplane.placement import HEAD_TAINT
from pinnace.errors import PinnaceError, UnsafePathError
from pinnace.network.netns_setup import add_sbin_to_path
from pinnace.node import requirements
from pinnace.node.agent import Agent, leave_on_signals, say
from pinnace.node.forking import blocked_signals
from pinnace.node.limits.memory_cgroup import in_memory_cgroup
from pinnace.node.stopping import ask_to_stop
from pinnace.podjobs import joining, start_throttle
from pinnace.sandbox import cgroups, scratch
from pinnace.slurm import host_name
from pinnace.spec import HEAD, Allocation, ClusterSpec, DeviceOffer, Mpi, NodeRecord, NodeSpec, NodeState, PodReference
from pinnace.timeline.recorder import MarkEvent, Recorder, StepName, node_marks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pinnace.node.certificates import Certificates
    from pinnace.slurm.gres import AllocatedGres

# What several processes of a node load. Loaded before these are forked, it is in memory once.
SHARED_MODULES = ("pinnace.network.native.server", "pinnace.node.services.usage", "pinnace.storage.provisioner")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pinnace-agent")
    parser.add_argument("--cluster", type=Path, required=True)
    parser.add_argument("--stop", action="store_true", help="ask the cluster to end, instead of being a node of it")
    parser.add_argument("--index", type=int, default=int(os.environ.get("SLURM_PROCID", "0")))
    parser.add_argument("--name", default=host_name(os.environ))
    parser.add_argument("--join", action="store_true", help="be one more node of a cluster that runs")
    parser.add_argument("--as", dest="known_as", help="the name of a node that joins; by default that of its job")
    parser.add_argument("--pod", type=PodReference.parse, help="be there for this pod alone")
    parser.add_argument("--image", action="append", default=[], help="that the pod will want (repeat)")
    parser.add_argument("--volumes", action="store_true", help="the pod has volumes that are claimed")
    parser.add_argument("--mpi-container", action="append", default=[], help="to be started by mpiexec (repeat)")
    parser.add_argument("--mpi-flags", default="", help="for mpiexec")
    parser.add_argument("--resource", action="append", default=[], help="a device that the pod asks for (repeat)")
    parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="of the node (repeat)")
    return parser


def main(argv: list[str], certificates: Certificates | None = None, timeline: Recorder | None = None) -> int:
    args = _parser().parse_args(argv)
    if args.stop:
        return 0 if ask_to_stop(args.cluster) else 1
    leave_on_signals()
    add_sbin_to_path()
    try:
        spec = ClusterSpec.load(args.cluster.resolve())
    except UnsafePathError as error:
        say(f"{args.name} cannot be a node: {error.message}")
        return 1
    return Launch(spec, args, certificates, timeline or Recorder()).run()


class Launch:
    """The start of one agent. Whatever keeps this host from being a node is said in the node's record."""

    def __init__(
        self, spec: ClusterSpec, args: argparse.Namespace, certificates: Certificates | None, timeline: Recorder
    ) -> None:
        self.spec, self.args, self.certificates, self.timeline = spec, args, certificates, timeline
        self.name: str = args.name
        self.index: int | None = None if args.join else args.index
        self.labels = dict(label.split("=", 1) for label in args.label)
        self.taints: tuple[str, ...] = ()
        self.turn: start_throttle.StartSlot | None = None

    def run(self) -> int:
        place: Path | None = None
        try:
            requirements.require_clock(self.spec.made, time.time())
            base = scratch.base(os.environ)
            requirements.require_executable(base)
            with blocked_signals():  # one that came before it has a name would leave the directory
                place = scratch.make(base, os.getuid())
            if self.args.join:
                if refusal := may_not_join(self.spec):
                    say(refusal)
                    return 1
                if self.args.pod and not self._wait_for_turn(place, self.args.pod):
                    say(f"other jobs had room for the pod {self.args.pod.name}")
                    return 0
                with self.timeline.step(StepName.JOIN):
                    self._join()
            elif self.index == HEAD and self.spec.provisioning and self.spec.provisioning.pods_as_jobs:
                self.taints = (HEAD_TAINT,)
            requirements.require_watches()
            agent = Agent(self._node(place), self.turn, self.certificates, self.timeline)
            if self.index != HEAD and not self.args.pod:  # the head and a pod are waited for
                load_shared_modules()
            gc.freeze()  # a collector that looks at what is loaded would give every forked process a copy of its own
            return agent.run()
        except (OSError, PinnaceError) as error:
            self._fail(error)
            return 1
        finally:
            if place:
                scratch.remove(place)
            self.timeline.mark(StepName.AGENT, MarkEvent.END)
            self.timeline.save(node_marks(self.spec.directory, self.name))

    def _wait_for_turn(self, place: Path, pod: PodReference) -> bool:
        """Nodes for single pods start a few at a time. Whether the pod still waits for one afterwards."""
        with self.timeline.step(StepName.START_THROTTLE):
            self.turn = start_throttle.acquire(place, os.getuid(), start_throttle.max_starting(os.cpu_count() or 1))
        if not self.turn.waited:
            return True
        from pinnace.podjobs import pod_runner  # noqa: PLC0415 - a tenth of a second, for which the node need not wait

        return pod_runner.is_waited_for(self.spec, pod)

    def _join(self) -> None:
        self.name = self.args.known_as or joining.node_name(os.environ)
        self.index = joining_index(self.spec, self.name)
        self.labels |= joining.labels(os.environ, self.args.name)
        self.taints = joining.taints(self.args.pod, self.args.known_as)

    def _node(self, place: Path) -> NodeSpec:
        args = self.args
        mpi = Mpi(containers=tuple(args.mpi_container), flags=tuple(shlex.split(args.mpi_flags)))
        return NodeSpec(
            cluster=self.spec,
            index=self.index or HEAD,
            name=self.name,
            scratch=place,
            allocation=allocated(os.environ),
            joined=args.join,
            labels=self.labels,
            taints=self.taints,
            pod=args.pod,
            images=tuple(args.image),
            volumes=args.volumes or not args.pod,
            mpi=mpi if args.mpi_container else None,
            offer=self._offer(),
            cgroup=make_cgroup(place),
        )

    def _offer(self) -> DeviceOffer:
        """The devices of this job; of a node for one pod, those that the pod asks for."""
        if self.args.pod and not self.args.resource:
            return DeviceOffer()
        from pinnace.devices import offering  # noqa: PLC0415 - most pods need none, and wait for us

        wanted = tuple(self.args.resource) if self.args.pod else None
        mapping = offering.DeviceMapping(gres=self.spec.gres, files=self.spec.device_files, resources=wanted)
        try:
            return offering.on_this_host(mapping, self._allocated_gres)
        except (OSError, ValueError, PinnaceError) as error:  # the node is of use without devices
            say(f"its devices are not offered: {error}")
            return DeviceOffer(resources=wanted or ())

    def _allocated_gres(self) -> list[AllocatedGres]:
        from pinnace.slurm.commands import Slurm  # noqa: PLC0415 - as above

        return Slurm().allocated_gres(int(os.environ["SLURM_JOB_ID"]), host_name(os.environ))

    def _fail(self, error: Exception) -> None:
        reason, hint = explain(error, scratch.base(os.environ))
        message = f"{self.args.name} cannot be a node: {reason}"
        say(message)
        if self.index is not None:
            record = NodeRecord(name=self.name, state=NodeState.FAILED, failure=message, hint=hint)
            record.write(self.spec.node_file(self.index))


def load_shared_modules() -> None:
    for name in SHARED_MODULES:
        importlib.import_module(name)


def allocated(environment: Mapping[str, str]) -> Allocation:
    """What Slurm has given us of this host: all of it, where it does not say."""
    cpus = environment.get("SLURM_CPUS_ON_NODE")
    per_node, per_cpu = environment.get("SLURM_MEM_PER_NODE"), environment.get("SLURM_MEM_PER_CPU")
    memory = int(per_node) if per_node else int(per_cpu or 0) * int(cpus or 0)
    return Allocation(
        cpus=int(cpus) if cpus else None,
        memory=memory << 20 or None,
        memory_cgroup=in_memory_cgroup(Path("/proc/self/cgroup").read_text()),
    )


def make_cgroup(place: Path) -> Path | None:
    """The node's own cgroup, where the user may make one; otherwise limits are kept without (``node.limits``)."""
    try:
        made = cgroups.set_up(place)
    except OSError as error:
        say(f"cgroups: {cgroups.describe(error)}; limits are kept {cgroups.OTHERWISE}")
        return None
    say(f"cgroups: delegated ({', '.join(cgroups.available(made))})")
    return made


def may_not_join(spec: ClusterSpec) -> str:
    """Why there is nothing to join: a job may have been pending for longer than its cluster lived."""
    head = NodeRecord.read(spec.node_file(HEAD))
    if not head or head.state is not NodeState.RUNNING:
        return f"the cluster {spec.name} has ended"
    return ""


def joining_index(spec: ClusterSpec, name: str) -> int:
    first = spec.provisioning.standing if spec.provisioning else 1
    job = int(os.environ.get("SLURM_JOB_ID", "0")) or None
    record = NodeRecord(name=name, state=NodeState.JOINING, job=job)
    return record.claim_index(spec.nodes, first=first, last=spec.ranges.last_index)


def explain(error: Exception, base: Path) -> tuple[str, str]:
    """Why this host cannot be a node, and what to do: what it lacks, if it does; otherwise the error itself."""
    if isinstance(error, PinnaceError) and error.hint:
        return str(error), error.hint
    from pinnace.node import checks  # noqa: PLC0415 - only who fails needs it

    for check in checks.host_checks(base):
        if check.state is checks.CheckState.FAILED:
            return f"{check.name}: {check.text}", check.hint
    return str(error), ""
