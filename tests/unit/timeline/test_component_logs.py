"""What the components say themselves: lines of real logs (Kubernetes 1.36, containerd 2.4)."""

from __future__ import annotations

import datetime as dt

import pytest

from pinnace.timeline.component_logs import ContainerdLog, klog_lines, kubelet_steps, rfc3339, scheduler_steps

STARTED = dt.datetime(2026, 11, 17, 22, 30, 0, tzinfo=dt.UTC).timestamp()
KUBELET = """\
I1117 22:30:00.500000      88 server.go:212] "Kubelet version" kubeletVersion="v1.36.3"
I1117 22:30:00.750000      88 kubelet_node_status.go:75] "Attempting to register node" node="n1"
I1117 22:30:01.000000      88 kubelet_node_status.go:78] "Successfully registered node" node="n1"
I1117 22:30:01.250000      88 kubelet_node_status.go:431] "Fast updating node status as it just became ready"
I1117 22:30:02.000000      88 kubelet.go:2709] "SyncLoop ADD" source="api" pods=["default/hello-x","kube-system/y"]
I1117 22:30:02.100000      88 kubelet.go:2709] "SyncLoop ADD" source="api" pods=["default/hello-x"]
"""
SCHEDULER = (
    'I1117 22:30:01.900000      91 schedule_one.go:481] "Successfully bound pod to node" pod="default/hello-x" '
    'node="n2" evaluatedNodes=2 feasibleNodes=2\n'
)


def test_a_kubelets_log() -> None:
    found = [(step.name, step.begin - STARTED, step.last - STARTED) for step in kubelet_steps(KUBELET, "n1", STARTED)]
    assert found == [
        ("register node", 0.75, 1.0),
        ("node is ready", 1.25, 1.25),
        ("default/hello-x: kubelet sees it", 2.0, 2.0),
        ("kube-system/y: kubelet sees it", 2.0, 2.0),
    ]


def test_the_schedulers_log() -> None:
    (step,) = scheduler_steps(SCHEDULER, STARTED)
    assert (step.where, step.name) == ("n2", "default/hello-x: scheduled")
    assert step.begin - STARTED == pytest.approx(1.9)


@pytest.mark.parametrize("hours", [-11, -3.5, 0, 1, 5.75, 13])
def test_a_log_in_another_time_zone(hours: float) -> None:
    local = dt.datetime.fromtimestamp(STARTED + 2 + hours * 3600, dt.UTC)
    text = f"I{local:%m%d %H:%M:%S}.250000      88 server.go:1] first\n"
    ((at, _),) = klog_lines(text, STARTED)
    assert at - STARTED == pytest.approx(2.25)


def test_the_year_may_end_between_a_start_and_its_first_line() -> None:
    started = dt.datetime(2026, 12, 31, 23, 59, 59, tzinfo=dt.UTC).timestamp()
    ((at, _),) = klog_lines("I0101 00:00:01.000000      88 server.go:1] first\n", started)
    assert at - started == pytest.approx(2.0)


def test_lines_without_a_time_are_left_out() -> None:
    assert list(klog_lines("Flag --x has been deprecated\n\ngoroutine 1 [running]:\n", STARTED)) == []


IMAGE = r"\"localhost/pinnace-test/busybox:1\""
POD = r"name:\"hello\"  uid:\"1\"  namespace:\"default\""
MESSAGES = {
    2.1: f"PullImage {IMAGE}",
    2.2: rf"PullImage {IMAGE} returns image reference \"sha256:ab\"",
    2.3: f"RunPodSandbox for {POD}",
    2.5: rf"RunPodSandbox for {POD} returns sandbox id \"5a\"",
    2.6: r"CreateContainer within sandbox \"5a\" for container name:\"main\"",
    2.7: r"CreateContainer within sandbox \"5a\" for name:\"main\" returns container id \"c0\"",
    2.75: r"StartContainer for \"c0\"",
    2.9: r"StartContainer for \"c0\" returns successfully",
    3.0: r"StartContainer for \"c1\"",
}
CONTAINERD = "\n".join(
    f'time="2026-11-17T22:30:{second:012.9f}Z" level=info msg="{message}"' for second, message in MESSAGES.items()
)


def test_containerds_log() -> None:
    found = ContainerdLog("n1").read(CONTAINERD)
    assert [(step.name, round(step.begin - STARTED, 3), round(step.last - STARTED, 3)) for step in found] == [
        ("pull busybox:1", 2.1, 2.2),
        ("default/hello: sandbox", 2.3, 2.5),
        ("default/hello/main: create", 2.6, 2.7),
        ("default/hello/main: start", 2.75, 2.9),
    ]


def test_times_of_containerd() -> None:
    assert rfc3339("2026-11-17T23:30:00.123456789+01:00") == pytest.approx(STARTED + 0.123456)
