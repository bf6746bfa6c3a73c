"""Messages between the agent and its children, over real sockets."""

from __future__ import annotations

import os

import pytest

from pinnace.node.messages import Channel, Drained, EvictPod, Fabric, Failed, Leave, Message, ServicesChanged, Stop
from pinnace.spec import ServiceRecord, ServiceState

KUBELET = ServiceRecord(name="kubelet", state=ServiceState.RUNNING, pid=7, restarts=2, last_end="exit code 1")


@pytest.mark.parametrize(
    "message",
    [
        Stop(),
        Drained(),
        Leave(exit_code=3),
        EvictPod(),
        Fabric(names=("tun", "egress")),
        Failed(reason="no \N{SNOWMAN} here"),
        ServicesChanged(services=(KUBELET,)),
    ],
)
def test_what_is_sent_is_received(message: Message) -> None:
    one, other = Channel.pair()
    one.send(message)
    assert other.receive() == message
    one.close()
    assert other.receive() is None
    other.close()


def test_descriptors_go_along() -> None:
    one, other = Channel.pair()
    readable, writable = os.pipe()
    one.send(Fabric(names=("tun", "egress")), writable)
    message, (received,) = other.receive_with_descriptors()
    assert message == Fabric(names=("tun", "egress"))
    os.write(received, b"x")
    assert os.read(readable, 1) == b"x"
    for descriptor in (readable, writable, received):
        os.close(descriptor)
    one.close()
    other.close()


def test_nobody_waits_for_one_that_does_not_read() -> None:
    one, other = Channel.pair()
    sent = [one.send(ServicesChanged(services=(KUBELET,))) for _ in range(10_000)]
    assert sent[0]
    assert not sent[-1], "there is no room for so many"
    assert other.receive() == ServicesChanged(services=(KUBELET,))
    other.close()
    one.send(Stop())
    one.close()


def test_without_waiting_there_may_be_nothing() -> None:
    one, other = Channel.pair()
    assert other.receive(wait=False) is None
    one.send(Stop())
    assert other.receive(wait=False) == Stop()
    one.close()
    other.close()
