"""The node's registry, which runs only while somebody pulls one of the user's images.

Init listens at its address. The first connection starts the service, which starts upstream's registry and relays
connections to it. When there has been none for IDLE_LIMIT, both end.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from typing import TYPE_CHECKING

from pinnace.errors import NodeError
from pinnace.images import registry
from pinnace.node.supervisor import Command, Function, Service, describe_end, last_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pinnace.node.init import Init

SERVICE = "registry"
START_LIMIT = 30.0  # seconds until upstream's registry listens; it takes less than a tenth on an idle machine
START_INTERVAL = 0.01  # seconds between looks whether it does
IDLE_LIMIT = 30.0  # seconds without a connection; the pulls of a workload follow one another faster
MAX_CONNECTIONS = 1024


def add(init: Init) -> None:
    """Listen, and start the service when there is a connection."""
    node, log = init.node, init.logs / f"{SERVICE}.log"
    address = str(init.run_directory / "registry.sock")  # no pod can take it, as it could take a port
    configuration = registry.config(f"{node.cluster.images}/registry", net="unix", addr=address)
    argv = registry.argv(node.binary("registry"), init.write("registry.json", json.dumps(configuration)))
    backend = Command(argv=argv, log=log, environment=registry.ENVIRONMENT)
    listener = socket.create_server(registry.ADDRESS, backlog=MAX_CONNECTIONS)
    run = Function(work=lambda _channel: serve(listener, backend, address), log=log)
    init.supervisor.add(Service(name=SERVICE, run=run, listener=listener))


def serve(listener: socket.socket, backend: Command, address: str, *, idle_limit: float = IDLE_LIMIT) -> None:
    """Relay what ``listener`` accepts to ``backend``, which is started for that, while there are connections."""
    from pinnace.network.quota import Quota  # noqa: PLC0415 - this process alone needs it
    from pinnace.network.splice import Pair, Splicer  # noqa: PLC0415 - as above

    with _running(backend, address) as require_running:
        connections: Quota[Pair] = Quota(MAX_CONNECTIONS)
        splicer = Splicer()
        splicer.listen(listener, lambda _accepted: (socket.socket(socket.AF_UNIX), address), connections)
        last_used = time.monotonic()
        while time.monotonic() - last_used < idle_limit:
            splicer.poll(idle_limit / 10)
            require_running()
            if connections:
                last_used = time.monotonic()


@contextlib.contextmanager
def _running(backend: Command, address: str) -> Iterator[Callable[[], None]]:
    """The registry, from when it listens. What is given raises once it has ended by itself."""
    process = backend.spawn()

    def require_running() -> None:
        if (code := process.poll()) is not None:
            raise NodeError(f"the registry ended with {describe_end(code)}: {last_line(backend.log)}")

    deadline = time.monotonic() + START_LIMIT
    try:
        while not _listens(address):
            require_running()
            if time.monotonic() > deadline:
                raise NodeError(f"the registry did not listen within {START_LIMIT:.0f} s")
            time.sleep(START_INTERVAL)
        yield require_running
    finally:
        process.kill()
        process.wait()


def _listens(address: str) -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.connect(address)
        return True
    return False
