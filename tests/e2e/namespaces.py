"""A namespace for a module's tests, and manifests as data."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from e2e.conftest import LIMIT, Kubectl

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

Object = dict[str, Any]


def image(name: str) -> str:
    return f"localhost/pinnace-test/{name}:1"


def pod(
    name: str, *command: str, of: str = "busybox", labels: dict[str, str] | None = None,
    container: Object | None = None, **spec: Any,
) -> Object:  # fmt: skip
    """A pod with one container. ``container`` and ``spec`` add what the test is about."""
    main = {"name": "main", "image": image(of), "command": list(command or ("sleep", "3600"))}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [main | (container or {})], **spec},
    }


def once(name: str, script: str, **more: Any) -> Object:
    """A pod that runs a script and ends with its exit code."""
    return pod(name, "sh", "-c", script, **({"restartPolicy": "Never"} | more))


def service(name: str, selector: dict[str, str], *ports: Object, **spec: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": selector, "ports": list(ports), **spec},
    }


def config_map(name: str, **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


@dataclass(kw_only=True)
class Namespace(Kubectl):
    """kubectl in one namespace."""

    name: str

    def __call__(self, *words: str, code: int | None = 0, timeout: float = LIMIT) -> str:
        return super().__call__("-n", self.name, *words, code=code, timeout=timeout)

    def run(self, *words: str, input: str | None = None, timeout: float = LIMIT) -> subprocess.CompletedProcess[str]:  # noqa: A002
        """The same with everything that kubectl says, and without an opinion on it."""
        return self.user.bed.run(self.argv(*words), user=self.user.name, check=False, timeout=timeout, input=input)

    def argv(self, *words: str) -> list[str]:
        return [*self.command, "-n", self.name, *words]

    def popen(self, *words: str, **streams: Any) -> subprocess.Popen[str]:
        return self.user.bed.popen(self.argv(*words), user=self.user.name, **streams)

    def file(self, *objects: Object) -> str:
        document = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        return self.user.write(f"{self.name}.json", json.dumps(document))

    def create(self, *objects: Object) -> None:
        self("apply", "-f", self.file(*objects))

    def refused(self, *objects: Object) -> str:
        """What the API says when it does not take objects."""
        result = self.run("apply", "-f", self.file(*objects))
        assert result.returncode != 0, result.stdout
        return result.stderr

    def ready(self, *names: str, limit: float = 60) -> None:
        self("wait", "--for=condition=Ready", f"--timeout={limit}s", *(f"pod/{name}" for name in names))

    def wait(self, what: str, condition: str, limit: float = 60) -> None:
        self("wait", f"--for={condition}", what, f"--timeout={limit}s")

    def ended(self, name: str, phase: str = "Succeeded") -> str:
        """Wait for a pod's end; gives what it printed."""
        self.wait(f"pod/{name}", f"jsonpath={{.status.phase}}={phase}")
        return self("logs", name)

    def sh(self, name: str, script: str, code: int | None = 0) -> str:
        return self("exec", name, "--", "sh", "-c", script, code=code)

    def address(self, name: str) -> str:
        address: str = self.json("get", "pod", name)["status"]["podIP"]
        return address


@contextlib.contextmanager
def namespace(cluster: Kubectl, name: str) -> Iterator[Namespace]:
    cluster("create", "namespace", name)
    made = Namespace(user=cluster.user, cluster=cluster.cluster, name=name)
    made("wait", "--for=create", "serviceaccount/default", "--timeout=120s")
    try:
        yield made
    finally:
        cluster("delete", "namespace", name, "--wait=false")
