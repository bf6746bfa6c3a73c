"""PersistentVolumes: directories on the shared file system and on the scratch of nodes.

Runs on compute nodes, so it imports the standard library alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinnace.interpreter import python_argv

if TYPE_CHECKING:
    from pinnace.spec import NodeSpec


def provisioner_argv(node: NodeSpec, python: str, scratch: str) -> list[str]:
    """The command of a node's provisioner; ``scratch`` is the directory of the node's own volumes."""
    args = ["--kubeconfig", node.secret("storage.kubeconfig"), "--node", node.name, "--scratch", scratch]
    if node.is_head:
        listed = node.cluster.restriction.host_paths if node.cluster.restriction else ()
        args += ["--shared", str(node.cluster.volumes), *(f"--host-path={path}" for path in listed)]
    return python_argv("pinnace.storage.provisioner", *args, python=python)
