"""PersistentVolumes: directories on the shared file system and on the scratch of nodes.

Runs on compute nodes, so it imports the standard library alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinnace.spec import NodeSpec


def provisioner_argv(node: NodeSpec, python: str, scratch: str) -> list[str]:
    """The command of a node's provisioner; ``scratch`` is where the node keeps its own volumes."""
    argv = [python, "-m", "pinnace.storage.provisioner", "--kubeconfig", node.secret("storage.kubeconfig")]
    argv += ["--node", node.name, "--scratch", scratch]
    if not node.is_head:
        return argv
    listed = node.cluster.restriction.host_paths if node.cluster.restriction else ()
    return [*argv, "--shared", str(node.cluster.volumes), *(f"--host-path={path}" for path in listed)]
