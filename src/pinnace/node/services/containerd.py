"""containerd without root: its configuration, the bridge that pods hang on, and the images it has from the start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.objects import HOST_NETWORK
from pinnace.devices import cdi
from pinnace.images import cache, cache_closing
from pinnace.network.native.profile import ANNOTATION as NATIVE_SOCKETS
from pinnace.network.tun import MTU
from pinnace.node.services import host_network
from pinnace.node.services.kubelet_pacing import held
from pinnace.node.services.runc_wrapper import DEFAULT_HANDLER, wrapper_script
from pinnace.node.services.user_groups import ANNOTATION as USER_GROUPS
from pinnace.sandbox.keeping_groups import keeper_argv
from pinnace.spec import SANDBOX_IMAGE, read_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.node.init import Init
    from pinnace.spec import NodeSpec

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
CNI_PLUGINS = "cni-plugins"  # a directory with plugins of ours
SOCKET_INTERVAL = 0.01  # seconds between looks whether containerd is there
CTR_TIMEOUT = 600.0  # seconds for one image


def add(init: Init) -> None:
    """containerd, and the task that gives it images.

    On a node for one pod it starts at once, and gets no further than to its second line (``kubelet_pacing``), which it
    writes before it opens any file of its own.
    """
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
        cni_plugins=[directory("ptp"), str(init.run_directory / CNI_PLUGINS)],
        certs=f"{node.cluster.images}/hosts",
    )
    prepared = _prepared(init)

    def ready() -> bool:
        return init.network_is_up.exists() and prepared()

    init.service(
        "containerd",
        [node.binary("containerd"), "--config", init.write("containerd.toml", configuration)],
        # A shim that is asked what its runtime can do looks for runc.
        environment={"PATH": f"{directory('containerd')}:{directory('runc')}:{os.environ['PATH']}"},
        waits_for=(lambda: True) if node.pod else ready,
        output=partial(held, ready=ready) if node.pod else None,
    )
    init.task("images", lambda: import_images(init))


def _runtimes(init: Init) -> str:
    """The runtime handlers, and the programs that they name."""
    node, requests = init.node, str(init.run_directory / "bundles")

    keeper = keeper_argv() if init.keeps_groups else ()

    def wrapper(handler: str) -> str:
        runc = node.binary("runc")
        script = wrapper_script(
            runc, requests, launcher=node.has_ranks, handler=handler, keeper=keeper, cgroups=init.has_cgroups
        )
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


def _prepared(init: Init) -> Callable[[], bool]:
    """Look whether the images of earlier clusters are still whole, or copy those of a node beside this one.

    Other things start meanwhile.
    """
    lease, done = init.lease, init.run_directory / "image-cache-is-prepared"
    if not lease or not (lease.parts or lease.source):
        return lambda: True

    def verify() -> None:
        cache.verify(cache_closing.ROOT, lease.parts)
        done.touch()

    def copy() -> None:
        from pinnace.images import cache_copying  # noqa: PLC0415 - this process alone needs it

        if lease.source:
            cache_copying.copy(lease.source, lease.containerd)
        done.touch()

    if lease.source:
        init.task("copy-image-cache", copy)
    else:
        init.task("verify-image-cache", verify)
    return done.exists


def import_images(init: Init) -> None:
    """Give containerd the sandbox image, and what the cluster's pods will want.

    What it has from an earlier cluster gets its name, all in one call; the rest is imported, or pulled from the
    registry.
    """
    from pinnace.images import naming  # noqa: PLC0415 - this process alone needs it

    os.setpgid(0, 0)  # so that all of it can be killed at once
    node, names = init.node, wanted_images(init.node)
    pause = node.cluster.directory / "images" / "pause.tar"
    wanted = [*naming.in_archive(pause), *naming.in_store(Path(node.cluster.images), names)]
    while not os.path.exists(CONTAINERD_SOCKET):  # noqa: PTH110
        time.sleep(SOCKET_INTERVAL)
    with (init.logs / "images.log").open("ab") as log:

        def ctr(*args: str, stdin: bytes = b"") -> bool:
            argv = [node.binary("ctr"), "--namespace", "k8s.io", "images", *args]
            done = subprocess.run(
                argv, input=stdin, stdout=subprocess.DEVNULL, stderr=log, check=False, timeout=CTR_TIMEOUT
            )
            return done.returncode == 0

        known = naming.held(cache_closing.ROOT, wanted)  # only now: what has been changed meanwhile is removed
        if known and not ctr("import", "--local", "-", stdin=naming.names_archive(known)):
            known = []
        named = {about["annotations"][naming.NAME] for about in known}
        if SANDBOX_IMAGE not in named:
            ctr("import", "--local", str(pause))
        for name in names:
            if name not in named:
                ctr("pull", f"--hosts-dir={node.cluster.images}/hosts", name)


def wanted_images(node: NodeSpec) -> list[str]:
    """What every node gets in advance; one that is for a single pod gets what that pod asks for."""
    if node.pod:
        return list(node.images)
    wanted: list[str] = read_json(node.cluster.directory / "images" / "wanted.json") or []
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
    """containerd without AppArmor and NRI; its runtimes are runc behind our wrapper."""

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
use_internal_loopback = true

[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = {quote(DEFAULT_HANDLER)}
{runtimes}
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = {quote(sandbox_image)}

[plugins."io.containerd.cri.v1.images".registry]
config_path = {quote(certs)}
"""


def cni_conflist(node: NodeSpec) -> dict[str, Any]:
    """Each pod has a link of its own to the node, and an address of the node's part of the pod range.

    Not a bridge: what one pod sends to another is routed, so kube-proxy's rules see it without br_netfilter.
    """
    subnet = str(node.cluster.ranges.pods_of(node.index))
    return {
        "cniVersion": "1.0.0",
        "name": "pinnace",
        "plugins": [
            {
                "type": "ptp",
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
