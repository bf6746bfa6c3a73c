"""containerd without root: its configuration, the bridge that pods hang on, and the images it has from the start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.objects import HOST_NETWORK
from pinnace.devices import cdi
from pinnace.images import cache, cache_closing
from pinnace.network.native.profile import ANNOTATION as NATIVE_SOCKETS
from pinnace.network.tun import MTU
from pinnace.node.services import host_network
from pinnace.node.services.runc_wrapper import DEFAULT_HANDLER, wrapper_script
from pinnace.node.services.user_groups import ANNOTATION as USER_GROUPS
from pinnace.sandbox.keeping_groups import keeper_argv
from pinnace.spec import read_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.node.init import Init
    from pinnace.spec import NodeSpec

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
SANDBOX_IMAGE = "pinnace.local/pause:latest"
CNI_PLUGINS = "cni-plugins"  # a directory with plugins of ours
SOCKET_INTERVAL = 0.01  # seconds between looks whether containerd is there
CTR_TIMEOUT = 600.0  # seconds for one image


def add(init: Init) -> None:
    """containerd, and the task that gives it images."""
    node = init.node

    def directory(binary: str) -> str:
        return str(Path(node.binary(binary)).parent)

    cni = init.run_directory / "cni"
    cni.mkdir()
    init.write("cni/10-pinnace.conflist", json.dumps(cni_conflist(node)))
    configuration = containerd_toml(
        runtimes=_runtimes(init),
        sandbox_image=SANDBOX_IMAGE,
        cni_config=str(cni),
        cni_plugins=[directory("bridge"), str(init.run_directory / CNI_PLUGINS)],
        certs=f"{node.cluster.images}/hosts",
    )
    init.task("images", lambda: import_images(init))
    init.service(
        "containerd",
        [node.binary("containerd"), "--config", init.write("containerd.toml", configuration)],
        # A shim that is asked what its runtime can do looks for runc.
        environment={"PATH": f"{directory('containerd')}:{directory('runc')}:{os.environ['PATH']}"},
        waits_for=_verified(init),
    )


def _runtimes(init: Init) -> str:
    """The runtime handlers, and the programs that they name."""
    node, requests = init.node, str(init.run_directory / "bundles")

    keeper = keeper_argv() if init.keeps_groups else ()

    def wrapper(handler: str) -> str:
        runc = node.binary("runc")
        script = wrapper_script(runc, requests, launcher=node.has_ranks, handler=handler, keeper=keeper)
        return init.write(handler, script, 0o755)

    runtimes = runtime_toml(DEFAULT_HANDLER, wrapper(DEFAULT_HANDLER))
    if node.cluster.has_host_network:
        socket = str(init.run_directory / host_network.SOCKET)
        script = host_network.shim_script(node.binary("containerd-shim-runc-v2"), socket, sys.executable)
        shim = init.write("containerd-shim-host-network", script, 0o755)
        runtimes += runtime_toml(HOST_NETWORK, wrapper(HOST_NETWORK), shim=shim, cni_config=_host_network_cni(init))
    return runtimes


def _host_network_cni(init: Init) -> str:
    """The directory of the CNI configuration of pods in the host's network. Its plugin is in CNI_PLUGINS."""
    directory = init.run_directory / "cni-host-network"
    for made in (directory, init.run_directory / CNI_PLUGINS):
        made.mkdir()
    init.write(f"{directory.name}/10-pinnace.conflist", json.dumps(host_network.cni_conflist()))
    address = host_network.host_record(init.node, init.node.index).address
    init.write(f"{CNI_PLUGINS}/{HOST_NETWORK}", host_network.cni_plugin(address), 0o755)
    return str(directory)


def _verified(init: Init) -> Callable[[], bool]:
    """Look whether the images of earlier clusters are still whole, while other things start."""
    if not init.lease or not init.lease.parts:
        return lambda: True
    parts, done = init.lease.parts, init.run_directory / "verified"

    def verify() -> None:
        cache.verify(cache_closing.ROOT, parts)
        done.touch()

    init.task("verify-image-cache", verify)
    return done.exists


def import_images(init: Init) -> None:
    """Put the sandbox image into containerd, then get from the registry what the cluster's pods will want."""
    os.setpgid(0, 0)  # so that all of it can be killed at once
    node, images = init.node, init.node.cluster.directory / "images"
    ctr = [node.binary("ctr"), "--namespace", "k8s.io", "images"]
    hosts = f"--hosts-dir={node.cluster.images}/hosts"
    while not os.path.exists(CONTAINERD_SOCKET):  # noqa: PTH110
        time.sleep(SOCKET_INTERVAL)
    pulls = (["pull", hosts, name] for name in _wanted(node, images))
    with (init.logs / "images.log").open("ab") as log:
        for args in (["import", "--local", str(images / "pause.tar")], *pulls):
            subprocess.run([*ctr, *args], stdout=subprocess.DEVNULL, stderr=log, check=False, timeout=CTR_TIMEOUT)


def _wanted(node: NodeSpec, images: Path) -> list[str]:
    """What every node gets in advance; one that is for a single pod gets what that pod asks for."""
    if node.pod:
        return list(node.images)
    wanted: list[str] = read_json(images / "wanted.json") or []
    return wanted


def runtime_toml(handler: str, runc: str, *, shim: str = "", cni_config: str = "") -> str:
    """A runtime handler of containerd: what it calls for runc. The shim and the CNI configuration may be its own."""
    table = f'[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{handler}'
    return f"""
{table}]
runtime_type = "io.containerd.runc.v2"
pod_annotations = {json.dumps([NATIVE_SOCKETS, USER_GROUPS])}
runtime_path = {json.dumps(shim)}
cni_conf_dir = {json.dumps(cni_config)}

{table}.options]
BinaryName = {json.dumps(runc)}
SystemdCgroup = false
"""


def containerd_toml(*, runtimes: str, sandbox_image: str, cni_config: str, cni_plugins: list[str], certs: str) -> str:
    """containerd without cgroups, AppArmor and NRI; its runtimes are runc behind our wrapper."""

    def quote(text: str) -> str:
        return json.dumps(text)

    return f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.internal.v1.tracing", "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.erofs"]

[grpc]
address = {quote(CONTAINERD_SOCKET)}

[plugins."io.containerd.cri.v1.runtime"]
disable_apparmor = true
restrict_oom_score_adj = true
tolerate_missing_hugetlb_controller = true
enable_unprivileged_ports = true
enable_unprivileged_icmp = true
cdi_spec_dirs = [{quote(str(cdi.SITES_DIRECTORY))}, {quote(str(cdi.DIRECTORY))}]

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = {json.dumps(cni_plugins)}
conf_dir = {quote(cni_config)}

[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = {quote(DEFAULT_HANDLER)}
{runtimes}
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = {quote(sandbox_image)}

[plugins."io.containerd.cri.v1.images".registry]
config_path = {quote(certs)}
"""


def cni_conflist(node: NodeSpec) -> dict[str, Any]:
    """Pods hang on a bridge with this node's allocation of the pod range; the wire's routes do the rest."""
    subnet = str(node.cluster.ranges.pods_of(node.index))
    return {
        "cniVersion": "1.0.0",
        "name": "pinnace",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "hairpinMode": True,
                "mtu": MTU,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni",
                    "ranges": [[{"subnet": subnet}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": True}},
        ],
    }
