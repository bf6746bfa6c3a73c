"""The API itself: who may do what, what is admitted, and what is told."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest

from e2e.namespaces import Namespace, config_map, namespace, once, pod
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.conftest import Kubectl

pytestmark = pytest.mark.bed

NAME = "api"


@pytest.fixture(scope="module")
def here(cluster: Kubectl) -> Iterator[Namespace]:
    with namespace(cluster, NAME) as here:
        yield here


@pytest.fixture(scope="module")
def strict(cluster: Kubectl) -> Iterator[Namespace]:
    with namespace(cluster, "strict") as strict:
        strict("label", "namespace", "strict", "pod-security.kubernetes.io/enforce=restricted")
        yield strict


@pytest.fixture(scope="module")
def bounded(cluster: Kubectl) -> Iterator[Namespace]:
    with namespace(cluster, "bounded") as bounded:
        quota = {"hard": {"pods": "2", "requests.cpu": "1", "configmaps": "3"}}
        limits = {"limits": [{"type": "Container", "default": {"cpu": "200m"}, "defaultRequest": {"cpu": "100m"},
                              "max": {"cpu": "900m"}}]}  # fmt: skip
        bounded.create(
            {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "quota"}, "spec": quota},
            {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "limits"}, "spec": limits},
        )
        bounded.wait("resourcequota/quota", "jsonpath={.status.hard.pods}=2")
        yield bounded


def test_pod_security_is_enforced(strict: Namespace) -> None:
    said = strict.refused(pod("bad", container={"securityContext": {"privileged": True}}, hostNetwork=True))
    assert 'violates PodSecurity "restricted:latest"' in said
    assert "privileged" in said
    assert "host namespaces" in said
    good = {"allowPrivilegeEscalation": False, "runAsNonRoot": True, "runAsUser": 1000,
            "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}}  # fmt: skip
    strict.create(once("good", "id -u", container={"securityContext": good}))
    assert strict.ended("good") == "1000\n"


def test_a_nodes_credentials_are_for_that_node_alone(here: Namespace) -> None:
    """What root of one node could do with its kubelet's key: nothing to the others."""
    directory = f"/home/{here.user.name}/.local/share/pinnace/clusters/{here.cluster}"
    file = f"{directory}/secrets/node-n1.kubeconfig"
    server = here("config", "view", "--raw", "-o", "jsonpath={.clusters[0].cluster.server}")

    def as_node(*words: str) -> tuple[int, str]:
        where = (f"--kubeconfig={file}", f"--server={server}", "--tls-server-name=kubernetes")
        result = here.run(*where, *words)
        return result.returncode, result.stderr

    assert as_node("label", "node", "n1", "example.com/own=yes")[0] == 0
    other = here.user.write("n2.json", json.dumps(here.json("get", "node", "n2")))
    code, said = as_node("replace", "--raw", "/api/v1/nodes/n2", "-f", other)
    assert code != 0
    assert "is not allowed to modify node" in said
    assert "only its own Node object" in as_node("get", "node", "n2")[1]
    code, said = as_node("label", "node", "n1", "node-restriction.kubernetes.io/mine=yes")
    assert code != 0
    assert "is not allowed to modify labels" in said
    here.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "not-for-nodes"}, "stringData": {"a": "b"}})
    code, said = as_node("get", "secret", "not-for-nodes")
    assert code != 0
    assert "no relationship found between node 'n1' and this object" in said
    here("label", "node", "n1", "example.com/own-")


def test_quotas_and_limits(bounded: Namespace) -> None:
    bounded.create(pod("first"))
    resources = bounded.json("get", "pod", "first")["spec"]["containers"][0]["resources"]
    assert resources == {"limits": {"cpu": "200m"}, "requests": {"cpu": "100m"}}
    large = {"resources": {"limits": {"cpu": "2"}}}
    assert "maximum cpu usage per Container is 900m" in bounded.refused(pod("large", container=large))
    bounded.create(pod("second"))
    assert "exceeded quota: quota" in bounded.refused(pod("third"))
    bounded.wait("resourcequota/quota", "jsonpath={.status.used.pods}=2")


def test_server_side_apply_knows_who_owns_what(here: Namespace) -> None:
    file = here.file(config_map("shared", ours="1"))
    here("apply", "--server-side", "--field-manager=one", "-f", file)
    other = here.file(config_map("shared", ours="2"))
    refused = here.run("apply", "--server-side", "--field-manager=two", "-f", other)
    assert refused.returncode != 0
    assert 'conflict with "one": .data.ours' in refused.stderr
    here("apply", "--server-side", "--field-manager=two", "--force-conflicts", "-f", other)
    assert here.json("get", "configmap", "shared")["data"] == {"ours": "2"}


def test_who_may_do_what(here: Namespace) -> None:
    here("create", "role", "looks", "--verb=get,list", "--resource=pods")
    here("create", "rolebinding", "looks", "--role=looks", "--user=jane")
    for words, answer, code in (
        (("get", "pods", "--as=jane"), "yes", 0),
        (("delete", "pods", "--as=jane"), "no", 1),
        (("get", "pods", "--as=jane", "-n", "default"), "no", 1),
        (("create", "nodes"), "yes", 0),
    ):
        assert here("auth", "can-i", *words, code=code).split()[0] == answer
    assert "pinnace-admin" in here("auth", "whoami")


def test_events_tell_what_happened(here: Namespace) -> None:
    here.create(once("brief", "true"))
    here.ended("brief")

    def told() -> bool:
        events = here.json("get", "events", "--field-selector=involvedObject.name=brief")["items"]
        return {"Scheduled", "Pulled", "Created", "Started"} <= {event["reason"] for event in events}

    wait_until("its events", told, limit=60)


def test_a_watch_tells_of_every_change(here: Namespace) -> None:
    line = 'jsonpath={.type} {.object.metadata.name}{"\\n"}'
    with here.popen("get", "configmaps", "--watch", "--output-watch-events", "-o", line) as watch:
        assert watch.stdout
        limit = threading.Timer(30, watch.kill)
        limit.start()
        assert watch.stdout.readline().startswith("ADDED "), "what is there already comes first"
        here("create", "configmap", "watched", "--from-literal=a=1")
        here("patch", "configmap", "watched", "-p", '{"data": {"a": "2"}}')
        here("delete", "configmap", "watched")
        seen: list[str] = []
        while len(seen) < 3 and (said := watch.stdout.readline()):
            seen += [said.split()[0]] if said.split()[1:] == ["watched"] else []
        limit.cancel()
        watch.terminate()
    assert seen == ["ADDED", "MODIFIED", "DELETED"]
