"""The life of a pod: probes, init containers, sidecars, restarts, hooks, the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from e2e.namespaces import Namespace, Object, image, namespace, once, pod, service
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.conftest import Kubectl, User

pytestmark = pytest.mark.bed

QUICK = {"periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 30}  # a busy machine takes its time to ask
DATA = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
VOLUME: Object = {"volumes": [{"name": "data", "emptyDir": {}}]}
HTTPD = "mkdir -p /www; touch /www/alive; httpd -p 8080 -h /www; "


def helper(name: str, script: str, **more: Any) -> Object:
    return {"name": name, "image": image("busybox"), "command": ["sh", "-c", script]} | DATA | more


def grpc(*, service: str = "") -> Object:
    return {"grpc": {"port": 5000, "service": service} if service else {"port": 5000}} | QUICK


def objects() -> list[Object]:
    exec_alive = {"exec": {"command": ["cat", "/tmp/alive"]}} | QUICK
    exec_ready = {"exec": {"command": ["cat", "/tmp/ready"]}} | QUICK
    hooks = {
        "postStart": {"exec": {"command": ["sh", "-c", "echo hook: started > /proc/1/fd/1"]}},
        "preStop": {"exec": {"command": ["sh", "-c", "echo hook: stopping > /proc/1/fd/1; sleep 1"]}},
    }
    on_term = "trap 'echo main: TERM; exit 0' TERM; echo main: begins; while :; do sleep 0.1; done"
    return [
        # Liveness: each is alive for three seconds, then not.
        pod("live-exec", "sh", "-c", "touch /tmp/alive; sleep 3; rm /tmp/alive; sleep 3600",
            container={"livenessProbe": exec_alive | {"initialDelaySeconds": 1}}),
        pod("live-http", "sh", "-c", HTTPD + "sleep 3; rm /www/alive; sleep 3600",
            container={"livenessProbe": QUICK | {
                "httpGet": {"path": "/alive", "port": 8080}, "initialDelaySeconds": 1}}),
        pod("live-tcp", "sh", "-c", HTTPD + "sleep 3; killall httpd; sleep 3600",
            container={"livenessProbe": {"tcpSocket": {"port": 8080}, "initialDelaySeconds": 1} | QUICK}),
        # The server says that it is well while there is a file: see the image.
        pod("live-grpc", "sh", "-c", "touch /tmp/alive; exec grpc-health 5000", of="grpc",
            container={"startupProbe": grpc() | {"failureThreshold": 60}, "livenessProbe": grpc()}),
        pod("gated-grpc", "grpc-health", "5000", of="grpc", container={"readinessProbe": grpc(service="ready")}),
        # Readiness: ready when told so.
        pod("gated", "sh", "-c", HTTPD + "sleep 3600", container={"readinessProbe": exec_ready}),
        service("gated", {"app": "gated"}, {"port": 80, "targetPort": 8080}),
        # Startup: its liveness probe would kill it at once, were it not held off.
        pod("slow", "sh", "-c", "sleep 5; touch /tmp/alive; sleep 3600",
            container={"startupProbe": exec_alive | {"failureThreshold": 30}, "livenessProbe": exec_alive}),
        once("inits", "cat /data/log", container=DATA, **VOLUME, initContainers=[
            helper("first", "sleep 1; echo first >> /data/log"), helper("second", "echo second >> /data/log")]),
        once("init-fails", "echo never", container=DATA, **VOLUME, initContainers=[helper("fails", "exit 9")]),
        once("with-sidecar", "cat /data/sidecar; sleep 1", container=DATA, **VOLUME, initContainers=[
            helper("sidecar", "trap 'exit 0' TERM; echo serving > /data/sidecar; while :; do sleep 0.1; done",
                   restartPolicy="Always",
                   startupProbe={"exec": {"command": ["cat", "/data/sidecar"]}} | QUICK | {"failureThreshold": 30})]),
        once("never", "exit 3"),
        once("on-failure", "[ -e /data/mark ] && exit 0; touch /data/mark; exit 1", container=DATA,
             restartPolicy="OnFailure", **VOLUME),
        once("always", "exit 0", restartPolicy="Always"),
        pod("hooked", "sh", "-c", on_term, container={"lifecycle": hooks}, terminationGracePeriodSeconds=20),
        pod("stubborn", "sh", "-c", "trap '' TERM; while :; do sleep 0.1; done", terminationGracePeriodSeconds=3),
        once("last-words", "echo it was the disk > /dev/termination-log; exit 1"),
        once("last-log", "echo it was the network; exit 1",
             container={"terminationMessagePolicy": "FallbackToLogsOnError"}),
        once("too-long", "sleep 3600", activeDeadlineSeconds=3),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def here(cluster: Kubectl, alice: User) -> Iterator[Namespace]:
    alice.pinnace("image", "load", "grpc.tar")
    with namespace(cluster, "lifecycle") as here:
        here.create(*objects())
        yield here


def status(here: Namespace, name: str) -> Any:
    return here.json("get", "pod", name)["status"]


@pytest.mark.parametrize("name", ["live-exec", "live-http", "live-tcp"])
def test_a_container_that_is_not_alive_is_restarted(here: Namespace, name: str) -> None:
    wait_until("a restart", lambda: status(here, name)["containerStatuses"][0]["restartCount"] > 0, limit=60)
    events = ("get", "events", f"--field-selector=involvedObject.name={name}")
    wait_until("its event", lambda: "Liveness probe failed" in here(*events), limit=60)


def test_only_a_ready_pod_is_an_endpoint(here: Namespace) -> None:
    def ready() -> list[bool]:
        slices = here.json("get", "endpointslices", "-l", "kubernetes.io/service-name=gated")["items"]
        return [endpoint["conditions"]["ready"] for item in slices for endpoint in item.get("endpoints") or ()]

    here.wait("pod/gated", "jsonpath={.status.phase}=Running")
    wait_until("an endpoint that is not ready", lambda: ready() == [False], limit=60)
    here.sh("gated", "touch /tmp/ready")
    wait_until("it to be ready", lambda: ready() == [True], limit=60)
    here.sh("gated", "rm /tmp/ready")
    wait_until("it to rest again", lambda: ready() == [False], limit=60)


def test_a_grpc_server_that_is_not_alive_is_restarted(here: Namespace) -> None:
    wait_until("it to start", lambda: status(here, "live-grpc")["containerStatuses"][0]["started"], limit=60)
    here.sh("live-grpc", "rm /tmp/alive")
    wait_until("a restart", lambda: status(here, "live-grpc")["containerStatuses"][0]["restartCount"] > 0, limit=60)
    events = ("get", "events", "--field-selector=involvedObject.name=live-grpc,reason=Unhealthy")
    wait_until("its event", lambda: "Liveness probe failed" in here(*events), limit=60)


def test_a_grpc_service_is_asked_by_its_name(here: Namespace) -> None:
    def ready() -> bool:
        return bool(status(here, "gated-grpc")["containerStatuses"][0]["ready"])

    here.wait("pod/gated-grpc", "jsonpath={.status.phase}=Running")
    here.sh("gated-grpc", "touch /tmp/alive")  # of the service without a name
    unhealthy = ("get", "events", "--field-selector=involvedObject.name=gated-grpc,reason=Unhealthy", "-o", "name")
    wait_until("a probe to fail", lambda: bool(here(*unhealthy)), limit=60)
    assert not ready()
    here.sh("gated-grpc", "touch /tmp/ready")
    wait_until("it to be ready", ready, limit=60)
    here.sh("gated-grpc", "rm /tmp/ready")
    wait_until("it to rest again", lambda: not ready(), limit=60)


def test_a_slow_start_is_not_taken_for_death(here: Namespace) -> None:
    here.ready("slow")
    assert status(here, "slow")["containerStatuses"][0]["restartCount"] == 0


def test_init_containers_run_in_order_before_the_others(here: Namespace) -> None:
    assert here.ended("inits") == "first\nsecond\n"


def test_a_failed_init_container_is_the_pods_failure(here: Namespace) -> None:
    here.wait("pod/init-fails", "jsonpath={.status.phase}=Failed")
    seen = status(here, "init-fails")
    assert seen["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 9
    assert "waiting" in seen["containerStatuses"][0]["state"]


def test_a_sidecar_starts_before_and_ends_after(here: Namespace) -> None:
    here.wait("pod/with-sidecar", "jsonpath={.status.phase}=Succeeded")
    assert here("logs", "with-sidecar", "-c", "main") == "serving\n"
    seen = status(here, "with-sidecar")
    sidecar = seen["initContainerStatuses"][0]["state"]["terminated"]
    assert sidecar["exitCode"] == 0
    assert sidecar["finishedAt"] >= seen["containerStatuses"][0]["state"]["terminated"]["finishedAt"]


def test_the_restart_policies(here: Namespace) -> None:
    here.wait("pod/never", "jsonpath={.status.phase}=Failed")
    never = status(here, "never")["containerStatuses"][0]
    assert (never["state"]["terminated"]["exitCode"], never["restartCount"]) == (3, 0)
    here.wait("pod/on-failure", "jsonpath={.status.phase}=Succeeded")
    assert status(here, "on-failure")["containerStatuses"][0]["restartCount"] == 1
    wait_until("another life", lambda: status(here, "always")["containerStatuses"][0]["restartCount"] > 0, limit=60)


def test_hooks_and_the_signal_come_in_order(here: Namespace) -> None:
    here.ready("hooked")
    with here.popen("logs", "-f", "hooked") as logs:
        assert logs.stdout
        said = [logs.stdout.readline().strip(), logs.stdout.readline().strip()]
        here("delete", "pod", "hooked", "--wait=false")
        said += logs.stdout.read().splitlines()
    assert sorted(said[:2]) == ["hook: started", "main: begins"]
    assert said[2:] == ["hook: stopping", "main: TERM"]


def test_the_grace_period_is_kept_and_no_longer(here: Namespace) -> None:
    here.ready("stubborn")
    begin = time.monotonic()
    here("delete", "pod", "stubborn")
    assert 2.9 < time.monotonic() - begin < 25


@pytest.mark.parametrize(("name", "words"), [("last-words", "the disk"), ("last-log", "the network")])
def test_last_words_are_kept(here: Namespace, name: str, words: str) -> None:
    here.wait(f"pod/{name}", "jsonpath={.status.phase}=Failed")
    assert status(here, name)["containerStatuses"][0]["state"]["terminated"]["message"].strip() == f"it was {words}"


def test_a_deadline_ends_a_pod(here: Namespace) -> None:
    here.wait("pod/too-long", "jsonpath={.status.reason}=DeadlineExceeded")
