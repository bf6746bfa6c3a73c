"""Controllers and the scheduler: what keeps pods running, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from e2e.namespaces import Namespace, Object, namespace, once, pod, service
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.conftest import Kubectl

pytestmark = pytest.mark.bed

NAME = "workloads"
HOST = "kubernetes.io/hostname"


def template(name: str, *command: str, **spec: Any) -> Object:
    made = pod(name, *command, **spec)
    return {"metadata": {"labels": {"app": name}}, "spec": made["spec"]}


def workload(kind: str, name: str, *command: str, of: Object | None = None, **spec: Any) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": template(name, *command, **spec),
            **(of or {}),
        },
    }


def job_spec(script: str, **spec: Any) -> Object:
    return {"template": template("job", "sh", "-c", script, restartPolicy="Never"), **spec}


def job(name: str, script: str, **spec: Any) -> Object:
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": job_spec(script, **spec)}


def cron_job() -> Object:
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "every-minute"},
        "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": job_spec("echo the hour has come")}},
    }


def on_hosts(operator: str, *values: str) -> Object:
    terms = [{"matchExpressions": [{"key": HOST, "operator": operator, "values": list(values)}]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def apart(name: str) -> Object:
    term = {"labelSelector": {"matchLabels": {"app": name}}, "topologyKey": HOST}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


@pytest.fixture(scope="module")
def here(cluster: Kubectl) -> Iterator[Namespace]:
    with namespace(cluster, NAME) as here:
        indexed = {"completionMode": "Indexed", "completions": 3, "parallelism": 3}
        here.create(
            cron_job(),
            service("ordered", {"app": "ordered"}, {"port": 80}, clusterIP="None"),
            workload("StatefulSet", "ordered", of={"replicas": 2, "serviceName": "ordered"}),
            workload("DaemonSet", "everywhere"),
            workload("Deployment", "apart", of={"replicas": 3}, affinity=apart("apart")),
            job("many", "sleep 1", parallelism=2, completions=4),
            job("indexed", "echo I am $JOB_COMPLETION_INDEX of $HOSTNAME", **indexed),
            job("hopeless", "exit 1", backoffLimit=1),
            once("there", "echo there", affinity=on_hosts("In", "n2")),
            once("not-there", "echo not there", affinity=on_hosts("NotIn", "n2")),
            once("nowhere", "echo nowhere", nodeSelector={"disk": "golden"}),
        )
        yield here


def node_of(here: Namespace, name: str) -> str:
    node: str = here.json("get", "pod", name)["spec"].get("nodeName", "")
    return node


def unschedulable(here: Namespace, name: str) -> str:
    """Wait until the scheduler has given up for now; gives its reason."""
    here.wait(f"pod/{name}", "jsonpath={.status.conditions[?(@.type=='PodScheduled')].reason}=Unschedulable")
    message: str = here.json("get", "pod", name)["status"]["conditions"][0]["message"]
    return message


def test_a_stateful_set_has_names_in_order_that_last(here: Namespace) -> None:
    here("rollout", "status", "statefulset/ordered", "--timeout=120s")
    first, second = (here.json("get", "pod", f"ordered-{n}")["metadata"] for n in (0, 1))
    assert first["creationTimestamp"] <= second["creationTimestamp"]
    here("delete", "pod", "ordered-0")
    here("rollout", "status", "statefulset/ordered", "--timeout=120s")
    again = here.json("get", "pod", "ordered-0")["metadata"]
    assert again["uid"] != first["uid"]
    address = here.address("ordered-0")
    name = f"ordered-0.ordered.{NAME}.svc.cluster.local"
    wait_until(
        "its name to follow it", lambda: address in here.sh("ordered-1", f"nslookup {name}", code=None), limit=60
    )
    here("scale", "statefulset/ordered", "--replicas=1")
    here.wait("pod/ordered-1", "delete")


def test_a_daemon_is_on_every_node(here: Namespace) -> None:
    here("rollout", "status", "daemonset/everywhere", "--timeout=120s")
    pods = here.json("get", "pods", "-l", "app=everywhere")["items"]
    assert sorted(item["spec"]["nodeName"] for item in pods) == ["n1", "n2"]


def test_pods_that_must_be_apart_are(here: Namespace) -> None:
    here.wait("deployment/apart", "jsonpath={.status.readyReplicas}=2")
    pods = here.json("get", "pods", "-l", "app=apart")["items"]
    assert sorted(item["spec"].get("nodeName", "none") for item in pods) == ["n1", "n2", "none"]


def test_a_deployment_rolls_over_and_back(here: Namespace) -> None:
    here.create(workload("Deployment", "rolls", of={"replicas": 2}))
    here("rollout", "status", "deployment/rolls", "--timeout=120s")
    here("set", "env", "deployment/rolls", "COLOUR=red")
    here("rollout", "status", "deployment/rolls", "--timeout=120s")
    assert here("exec", "deployment/rolls", "--", "sh", "-c", "echo $COLOUR").strip() == "red"
    here("rollout", "undo", "deployment/rolls")
    here("rollout", "status", "deployment/rolls", "--timeout=120s")
    assert here("get", "replicasets", "-l", "app=rolls", "--no-headers").count("\n") == 2


def test_jobs_end_as_they_should(here: Namespace) -> None:
    here.wait("job/many", "condition=Complete")
    assert here.json("get", "job", "many")["status"]["succeeded"] == 4
    here.wait("job/indexed", "condition=Complete")
    assert here.json("get", "job", "indexed")["status"]["completedIndexes"] == "0-2"
    said = here("logs", "-l", "batch.kubernetes.io/job-name=indexed").splitlines()
    assert sorted(said) == [f"I am {n} of indexed-{n}" for n in range(3)]
    here.wait("job/hopeless", "condition=Failed")
    status = here.json("get", "job", "hopeless")["status"]
    assert (status["failed"], status["conditions"][-1]["reason"]) == (2, "BackoffLimitExceeded")


def test_affinity_and_selectors_decide_where(here: Namespace) -> None:
    assert here.ended("there") == "there\n"
    assert here.ended("not-there") == "not there\n"
    assert (node_of(here, "there"), node_of(here, "not-there")) == ("n2", "n1")
    assert "didn't match Pod's node affinity/selector" in unschedulable(here, "nowhere")
    here("label", "node", "n2", "disk=golden")
    assert here.ended("nowhere") == "nowhere\n"
    here("label", "node", "n2", "disk-")


def test_taints_keep_away_those_that_do_not_tolerate_them(here: Namespace) -> None:
    selector = {HOST: "n2"}
    tolerations = [{"key": "reserved", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}]
    here("taint", "node", "n2", "reserved=yes:NoSchedule")
    try:
        here.create(
            once("welcome", "echo welcome", nodeSelector=selector, tolerations=tolerations),
            once("unwelcome", "echo at last", nodeSelector=selector),
        )
        assert here.ended("welcome") == "welcome\n"
        assert "untolerated taint" in unschedulable(here, "unwelcome")
    finally:
        here("taint", "node", "n2", "reserved-")
    assert here.ended("unwelcome") == "at last\n"


def test_draining_heeds_the_disruption_budget(here: Namespace) -> None:
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "guarded"},
              "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}}  # fmt: skip
    preferred = {"weight": 100, "preference": {"matchExpressions": [{"key": HOST, "operator": "In", "values": ["n2"]}]}}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}}
    here.create(budget, workload("Deployment", "guarded", affinity=affinity))
    here("rollout", "status", "deployment/guarded", "--timeout=120s")
    here.wait("pdb/guarded", "jsonpath={.status.currentHealthy}=1")
    drain = ("drain", "n2", "--pod-selector=app=guarded", "--ignore-daemonsets", "--delete-emptydir-data")
    try:
        refused = here.run(*drain, "--timeout=10s")
        assert refused.returncode != 0
        assert "violate the pod's disruption budget" in refused.stderr
        assert here.json("get", "node", "n2")["spec"]["unschedulable"]
        here("scale", "deployment/guarded", "--replicas=2")
        here("rollout", "status", "deployment/guarded", "--timeout=120s")
        here.wait("pdb/guarded", "jsonpath={.status.disruptionsAllowed}=1")
        here(*drain, "--timeout=120s")
        here("rollout", "status", "deployment/guarded", "--timeout=120s")
        pods = here.json("get", "pods", "-l", "app=guarded", "--field-selector=status.phase=Running")["items"]
        assert {item["spec"]["nodeName"] for item in pods if "deletionTimestamp" not in item["metadata"]} == {"n1"}
    finally:
        here("uncordon", "n2")


def test_the_more_important_pod_displaces_the_other(here: Namespace) -> None:
    """Over a resource that only one node has, once."""
    slot = "example.com/slot"
    patch = f'[{{"op": "add", "path": "/status/capacity/{slot.replace("/", "~1")}", "value": "1"}}]'
    here("patch", "node", "n2", "--subresource=status", "--type=json", "-p", patch)
    wait_until("the slot", lambda: here.json("get", "node", "n2")["status"]["allocatable"].get(slot) == "1", limit=60)
    important = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "important"},
                 "value": 1000, "description": "goes first"}  # fmt: skip
    resources = {"resources": {"limits": {slot: "1"}}}
    here.create(important, pod("humble", container=resources))
    here.ready("humble")
    here.create(pod("mighty", container=resources, priorityClassName="important"))
    here.ready("mighty")
    here.wait("pod/humble", "delete")


def test_a_cron_job_runs_when_its_time_has_come(here: Namespace) -> None:
    here.wait("cronjob/every-minute", "jsonpath={.status.lastSuccessfulTime}", limit=90)
    name = here.json("get", "jobs")["items"]
    ran = [item["metadata"]["name"] for item in name if item["metadata"]["name"].startswith("every-minute")]
    assert here("logs", f"job/{ran[0]}") == "the hour has come\n"
