"""containerd's configuration: which programs a runtime handler has."""

from __future__ import annotations

import tomllib
from typing import Any

from pinnace.node.services.containerd import containerd_toml, runtime_toml


def handlers(*tables: str) -> dict[str, Any]:
    text = containerd_toml(
        runtimes="".join(tables), sandbox_image="pause", cni_config="/cni", cni_plugins=["/a b", "/c"], certs="/certs"
    )
    plugin = tomllib.loads(text)["plugins"]["io.containerd.cri.v1.runtime"]
    assert plugin["cni"] == {"bin_dirs": ["/a b", "/c"], "conf_dir": "/cni", "use_internal_loopback": True}
    assert plugin["containerd"]["default_runtime_name"] == "runc"
    found: dict[str, Any] = plugin["containerd"]["runtimes"]
    return found


def test_a_handler_has_its_own_runc_and_if_it_says_so_its_own_shim_and_network() -> None:
    found = handlers(
        runtime_toml("runc", "/run/runc"),
        runtime_toml("host-network", '/run/"other" runc', shim="/run/shim", cni_config="/run/cni"),
    )
    assert {name: handler["options"]["BinaryName"] for name, handler in found.items()} == {
        "runc": "/run/runc",
        "host-network": '/run/"other" runc',
    }
    about = [(handler["runtime_path"], handler["cni_conf_dir"]) for handler in found.values()]
    assert about == [("", ""), ("/run/shim", "/run/cni")]
    assert {handler["runtime_type"] for handler in found.values()} == {"io.containerd.runc.v2"}
