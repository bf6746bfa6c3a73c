"""Has the agent start a containerd-shim, and ends as it does. See ``node.shim_server``.

    python -I -S …/shim_client.py SOCKET ARGUMENT…

containerd waits for it at every start of a pod, so it imports nothing of ours.
"""

import json
import os
import socket
import sys

STANDARD_STREAMS = (0, 1, 2)
ENDED = "pinnace: the process that should start a shim in the host's network has ended; the kubelet tries again"


def ask(path: str, arguments: list[str]) -> bytes:
    """The exit code of the shim; nothing if whoever should have started it has ended."""
    request = {"arguments": arguments, "environment": dict(os.environ), "directory": os.getcwd()}  # noqa: PTH109
    with socket.socket(socket.AF_UNIX) as agent:
        agent.connect(path)
        try:
            socket.send_fds(agent, [b"\n"], STANDARD_STREAMS)
            agent.sendall(json.dumps(request).encode())
            agent.shutdown(socket.SHUT_WR)
            return agent.recv(16)
        except ConnectionError:
            return b""


def main() -> None:
    path, *arguments = sys.argv[1:]
    code = ask(path, arguments)
    sys.exit(int(code) if code else ENDED)


if __name__ == "__main__":
    main()
