"""A cluster on a test bed of its own, and a pod in it that runs the suite.

The suite talks to the addresses of nodes and pods, so it has to be inside the fabric. A pod on the network of its node
is, and it needs no rights but a service account's: the same can be done on any site, by any user.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.components.store import user_root
from testbed.errors import BedError
from testbed.images import build_images
from testbed.images.conformance import RECIPES
from testbed.software import PREFIX, install
from testbed.state import Directories

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from testbed import Bed

STATE = Directories(state=Path("/var/lib/testbed-conformance"))
CLUSTER = "conformance"
NAMESPACE = "conformance"
COMPONENTS = f"{PREFIX}/share/pinnace/components"
RESULTS = "conformance"  # in the home of the bed's user
USER = "alice"
MEMORY = "7900M"  # of the bed's 8000
LIMIT = 300.0  # seconds that any one command may take
POLL = 5.0
IMAGE = RECIPES["agnhost:2.63.0"].reference


@dataclass(frozen=True, kw_only=True)
class Part:
    """A run of the suite: tests that may run beside each other, or those that must be alone."""

    name: str
    labels: str
    processes: int


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which of the conformance tests are run: regular expressions, as ginkgo takes them."""

    focus: str = ""
    skip: str = ""
    processes: int = 4

    @property
    def parts(self) -> tuple[Part, ...]:
        return (
            Part(name="parallel", labels="Conformance && !Serial", processes=self.processes),
            Part(name="serial", labels="Conformance && Serial", processes=1),
        )


def suite_argv(part: Part, choice: Choice, *, nodes: int, hours: int) -> list[str]:
    """The command inside the pod."""
    chosen = [f"--focus={choice.focus}"] if choice.focus else []
    chosen += [f"--skip={choice.skip}"] if choice.skip else []
    return [
        "/suite/ginkgo",
        "--no-color",
        "--silence-skips",
        f"--procs={part.processes}",
        f"--timeout={hours}h",
        f"--label-filter={part.labels}",
        *chosen,
        "/suite/e2e.test",
        "--",
        f"--report-dir=/results/{part.name}",
        "--provider=skeleton",
        "--disable-log-dump",
        f"--num-nodes={nodes}",
        "--kubectl-path=/kubernetes/kubectl",
    ]


def objects(part: Part, argv: list[str], *, version: str, arch: str, results: str) -> list[dict[str, Any]]:
    """The pod, and what lets it do everything. No taint and no other pod may drive it away: tests try both."""
    account = {"name": "conformance", "namespace": NAMESPACE}
    paths = {
        "suite": f"{COMPONENTS}/conformance/{version}/{arch}",
        "kubernetes": f"{COMPONENTS}/kubernetes/{version}/{arch}",
        "results": results,
    }
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "conformance"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", **account}],
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": part.name, "namespace": NAMESPACE},
            "spec": {
                "serviceAccountName": "conformance",
                "hostNetwork": True,
                "dnsPolicy": "ClusterFirstWithHostNet",
                "priorityClassName": "system-node-critical",
                "tolerations": [{"operator": "Exists"}],
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {
                        "name": "suite",
                        "image": IMAGE,
                        # The output goes to the shared file system, where it outlives the pod.
                        "command": ["bash", "-c", f'exec "$@" >/results/{part.name}.log 2>&1', "suite", *argv],
                        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - of the container
                        "volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in paths],
                    }
                ],
                "volumes": [{"name": name, "hostPath": {"path": path}} for name, path in paths.items()],
            },
        },
    ]


@dataclass(kw_only=True)
class Runner:
    """The suite on a bed that is up."""

    bed: Bed
    nodes: int
    say: Callable[[str], None]

    @property
    def results(self) -> Path:
        """Where the suite writes, from outside."""
        return self.bed.directories.home / USER / RESULTS

    def user(self, *argv: str, timeout: float = LIMIT, check: bool = True) -> str:
        return self.bed.run(argv, user=USER, check=check, timeout=timeout).stdout

    def kubectl(self, *words: str) -> str:
        return self.user("pinnace", "kubectl", "--name", CLUSTER, *words)

    def prepare(self, project: Path) -> None:
        """Install pinnace, load the images, start the cluster."""
        install(self.bed, project, share=user_root().parent)
        for image in self.images():
            self.user("pinnace", "image", "load", image)
        self.user("mkdir", "--parents", RESULTS)
        self.say("starting the cluster")
        nodes = str(self.nodes)
        self.user("pinnace", "up", "--name", CLUSTER, "-N", nodes, "--mem", MEMORY, "--exclusive", "-t", "1-00:00:00")

    def end(self) -> None:
        """End the cluster in order."""
        self.user("pinnace", "down", CLUSTER)

    def images(self) -> Iterator[str]:
        """Put one image after the other into the user's home, since all together are large."""
        path = self.bed.directories.home / USER / "image.tar"
        for name, built in zip(RECIPES, build_images(list(RECIPES), recipes=RECIPES), strict=True):
            self.say(f"loading {name}")
            shutil.copyfile(built.path, path)
            yield path.name
        path.unlink()

    def run(self, part: Part, choice: Choice, *, version: str, arch: str, hours: int) -> str:
        """Run one part; returns the phase in which its pod ended."""
        argv = suite_argv(part, choice, nodes=self.nodes, hours=hours)
        made = objects(part, argv, version=version, arch=arch, results=f"/home/{USER}/{RESULTS}")
        manifest = self.bed.directories.home / USER / "conformance.json"
        manifest.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": made}))
        self.kubectl("apply", "-f", manifest.name)
        deadline = time.monotonic() + hours * 3600 + LIMIT
        log = self.results / f"{part.name}.log"
        told = 0
        while time.monotonic() < deadline:
            phase = self.phase(part)
            if phase in {"Succeeded", "Failed"}:
                return phase
            done = log.read_text(errors="replace").count("•") if log.exists() else 0
            if done >= told + 20:
                told = done
                self.say(f"{part.name}: {done} tests")
            time.sleep(POLL)
        return "Timeout"

    def phase(self, part: Part) -> str:
        """The pod's phase; nothing while the API does not answer."""
        words = ("get", "pod", part.name, "-n", NAMESPACE, "-o", "jsonpath={.status.phase}")
        try:
            return self.kubectl(*words)
        except (BedError, subprocess.TimeoutExpired):
            return ""
