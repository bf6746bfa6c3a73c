"""The registry of a node: upstream's ``distribution``, which serves the user's image store to containerd.

It only reads, so any number of them serve one store. containerd finds it on the loopback interface of the node's own
network namespace.
"""

from __future__ import annotations

from typing import Any

ADDRESS = ("127.0.0.1", 10230)
# Otherwise it connects to an OpenTelemetry collector on every request.
ENVIRONMENT = {"OTEL_TRACES_EXPORTER": "none"}


def config(root: str, **http: Any) -> dict[str, Any]:
    """The configuration, as JSON, which is YAML. ``http`` has ``addr``, where it listens."""
    return {
        "version": 0.1,
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {
            "filesystem": {"rootdirectory": root},
            "maintenance": {"uploadpurging": {"enabled": False}, "readonly": {"enabled": True}},
        },
        "http": {"secret": "unused: nothing is uploaded", **http},
    }


def argv(binary: str, config_file: str) -> list[str]:
    return [binary, "serve", config_file]


def hosts_toml(registry: str) -> str:
    """containerd's configuration of a registry: the node's registry is a mirror, the real one is asked after it.

    The registry's name becomes the first part of the path, so that equal paths of two registries do not collide.
    """
    return f"""[host."http://{ADDRESS[0]}:{ADDRESS[1]}/v2/{registry.replace(":", "__")}"]
capabilities = ["pull", "resolve"]
override_path = true
"""
