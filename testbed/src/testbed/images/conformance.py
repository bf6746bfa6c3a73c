"""The images that upstream's conformance tests ask for, under upstream's names and tags, as data.

Upstream's own programs are built from the source that the pinned version of Kubernetes publishes with its tests; what
stands on Alpine there stands on our Debian base layer here. They are apart from the other images because only
``make conformance`` and the test of gRPC probes need them, and Go to build them.

``test/utils/image/manifest.go`` of the Kubernetes module has the names; ``e2e.test --list-images`` prints them.
"""

from __future__ import annotations

from testbed.images.compiling import Program
from testbed.images.entries import directory, file, link
from testbed.images.golang import GoFile, GoProgram, read_lock
from testbed.images.oci import Command
from testbed.images.recipes import ACCOUNTS, BASE, GROUPS, PAUSE, SOURCES, WEB, LayerRecipe, Recipe

__all__ = ["RECIPES"]

REGISTRY = "registry.k8s.io"
TESTS = f"{REGISTRY}/e2e-test-images"
MODULE = "k8s.io/kubernetes"
KUBERNETES = read_lock("kubernetes")

# The tests look for this user and its second group.
IMAGE_USER = "user-defined-in-image"
AGNHOST = LayerRecipe(
    # diffutils are for the suite's own pod, which has kubectl.
    packages=(
        "bind9-dnsutils",
        "curl",
        "diffutils",
        "iproute2",
        "iputils-ping",
        "netbase",
        "netcat-openbsd",
        "util-linux",
        "wget",
    ),
    exclude=("adduser",),
    entries=(
        link("usr/bin/nc", "nc.openbsd"),
        link("agnhost-2", "agnhost"),
        directory("uploads"),
        file("etc/passwd", ACCOUNTS.replace("user:x:1000", f"{IMAGE_USER}:x:1000")),
        file(
            "etc/group",
            GROUPS.replace("user:x:1000", f"{IMAGE_USER}:x:1000") + f"group-defined-in-image:x:50000:{IMAGE_USER}\n",
        ),
    ),
    modules=(
        GoProgram(path="agnhost", package=f"{MODULE}/test/images/agnhost", lock=KUBERNETES),
        *(
            GoFile(path=name, module=MODULE, source=f"test/images/agnhost/porter/{name}", lock=KUBERNETES)
            for name in ("localhost.crt", "localhost.key")
        ),
    ),
)
AGNHOST_COMMAND = Command(
    entrypoint=("/agnhost",),
    cmd=("pause",),
    ports=("80/tcp", "8080/tcp", "8081/tcp", "9376/tcp", "5000/tcp"),
)

# Not Debian's static busybox, which crashes when it looks up a name. Upstream's image has all applets in /bin.
BUSYBOX = LayerRecipe(
    packages=("busybox",),
    exclude=("adduser",),
    entries=(link("usr/bin/sysctl", "busybox"),),
    programs=(Program(path="usr/bin/sh", source=(SOURCES / "sh.c").read_text(), flags=("-Os",)),),
    busybox="usr/bin/busybox",
)

DNS = LayerRecipe(packages=("bind9-dnsutils",), exclude=("adduser",))

NEW_PRIVILEGES = LayerRecipe(
    modules=(
        GoProgram(path="usr/local/bin/nnp", package=f"{MODULE}/test/images/nonewprivs", lock=KUBERNETES, mode=0o6755),
    ),
)

SAMPLE_APISERVER = LayerRecipe(
    modules=(
        GoProgram(path="sample-apiserver", package="k8s.io/sample-apiserver", lock=read_lock("sample-apiserver")),
    ),
)

ETCD = LayerRecipe(
    modules=(GoProgram(path="usr/local/bin/etcd", package="go.etcd.io/etcd/server/v3", lock=read_lock("etcd")),),
)


def page(name: str) -> LayerRecipe:
    """Return the layer of an image that serves one picture. A test wants to see that upstream's is an Alpine."""
    return LayerRecipe(
        entries=(file("etc/os-release", 'PRETTY_NAME="Debian in place of Alpine Linux"\nID=debian\n'),),
        modules=tuple(
            GoFile(path=source, module=MODULE, source=f"test/images/{name}/html/{source}", lock=KUBERNETES)
            for source in (f"{name}.jpg", "data.json")
        ),
    )


def agnhost(name: str, version: str, *layers: LayerRecipe, cmd: str = "pause", user: str = "") -> Recipe:
    """Return an image that is agnhost, with little changed."""
    command = Command(entrypoint=AGNHOST_COMMAND.entrypoint, cmd=(cmd,), ports=AGNHOST_COMMAND.ports, user=user)
    return Recipe(name=name, version=version, registry=TESTS, layers=(BASE, AGNHOST, *layers), command=command)


def nginx(version: str) -> Recipe:
    """Return the web server; the tests that update one want two versions."""
    command = Command(cmd=("web",), ports=("80/tcp",), stop_signal="SIGQUIT")
    return Recipe(name="nginx", version=version, registry=TESTS, layers=(BASE, WEB), command=command)


RECIPES: dict[str, Recipe] = {
    f"{recipe.name}:{recipe.version}": recipe
    for recipe in (
        agnhost("agnhost", "2.63.0"),
        agnhost("agnhost", "2.55"),
        agnhost("kitten", "1.8", page("kitten"), cmd="test-webserver"),
        agnhost("nautilus", "1.8", page("nautilus"), cmd="test-webserver"),
        agnhost("nonroot", "1.5", user="1234"),
        Recipe(
            name="busybox", version="1.37.0-1", registry=TESTS, layers=(BASE, BUSYBOX), command=Command(cmd=("sh",))
        ),
        Recipe(
            name="glibc-dns-testing",
            version="2.0.0",
            registry=TESTS,
            layers=(BASE, DNS),
            command=Command(cmd=("bash",)),
        ),
        nginx("1.15-4"),
        nginx("1.27-0"),
        Recipe(
            name="nonewprivs",
            version="1.4",
            registry=TESTS,
            layers=(BASE, NEW_PRIVILEGES),
            command=Command(cmd=("nnp",)),
        ),
        Recipe(
            name="sample-apiserver",
            version="1.29.2",
            registry=TESTS,
            layers=(SAMPLE_APISERVER,),
            command=Command(entrypoint=("/sample-apiserver",)),
        ),
        Recipe(name="etcd", version="3.6.8-0", registry=REGISTRY, layers=(ETCD,), command=Command(cmd=("etcd",))),
        Recipe(
            name="pause", version="3.10.2", registry=REGISTRY, layers=(PAUSE,), command=Command(entrypoint=("/pause",))
        ),
    )
}
