"""The images, as data.

Maintainer scripts do not run, so a recipe adds what they would have made: accounts, links of the alternatives,
configuration. It excludes packages that only those scripts, or init scripts, would have used.

All but two images stand on one base layer, an ordinary Debian userland, so that a node holds it once and every test
finds a shell and the usual tools in its container.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.errors import UsageError
from testbed.images.compiling import Program
from testbed.images.entries import Entry, directory, file, link
from testbed.images.golang import GoProgram, GoSource, read_lock
from testbed.images.oci import Command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testbed.images.golang import GoFile

__all__ = ["RECIPES", "LayerRecipe", "Recipe", "find"]

PREFIX = "localhost/pinnace-test"
SOURCES = Path(__file__).parent / "sources"


@dataclass(frozen=True, kw_only=True)
class LayerRecipe:
    """What a layer adds to those below it. ``busybox`` is the path of one whose applets are to be linked."""

    packages: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    entries: tuple[Entry, ...] = ()
    programs: tuple[Program, ...] = ()
    modules: tuple[GoProgram | GoFile | GoSource, ...] = ()
    busybox: str = ""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """An image: its layers from the lowest, and what it runs."""

    name: str
    layers: tuple[LayerRecipe, ...]
    command: Command
    version: str = "1"
    registry: str = PREFIX

    @property
    def reference(self) -> str:
        return f"{self.registry}/{self.name}:{self.version}"


def find(name: str, recipes: Mapping[str, Recipe] | None = None) -> Recipe:
    """Return the recipe of a name."""
    known = RECIPES if recipes is None else recipes
    if name not in known:
        raise UsageError(f"there is no image {name!r}", hint=f"Known images: {', '.join(known)}.")
    return known[name]


def nginx_conf(*, ports: tuple[int, ...], user: str = "") -> str:
    """Return a configuration that writes only to the container's output and to /tmp.

    Without a user to change to, it is for anyone: then requests are not logged, since a user who did not make the
    pipe of the output may write to it, but not open it by its name as nginx would.
    """
    temporary = "".join(
        f"    {kind}_temp_path /tmp/nginx-{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    listen = "".join(f"        listen {port};\n" for port in ports)
    return (
        (f"user {user};\n" if user else "")
        + "daemon off;\nworker_processes 2;\npid /tmp/nginx.pid;\nerror_log stderr notice;\n"
        "events {}\n"
        "http {\n"
        "    include mime.types;\n"
        f"    access_log {'/dev/stdout' if user else 'off'};\n"
        f"{temporary}"
        "    server {\n"
        f"{listen}"
        "        root /usr/share/nginx/html;\n"
        # Which of a Service's pods answered.
        '        location = /hostname { default_type text/plain; return 200 "$hostname\\n"; }\n'
        "    }\n"
        "}\n"
    )


ACCOUNTS = """\
root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin
user:x:1000:1000:user:/home/user:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
# Beside the groups of these accounts, those to which Debian's packages give files.
GROUPS = """\
root:x:0:
daemon:x:1:
adm:x:4:
tty:x:5:
mail:x:8:
www-data:x:33:
shadow:x:42:
utmp:x:43:
staff:x:50:
user:x:1000:
nogroup:x:65534:
"""
NSSWITCH = """\
passwd: files
group: files
shadow: files
hosts: files dns
networks: files
protocols: files
services: files
"""
PAGE = """\
<!DOCTYPE html>
<html lang="en"><head><title>pinnace</title></head><body><p>It works: a page from the test image.</p></body></html>
"""

ROOT = (
    *(link(name, f"usr/{name}") for name in ("bin", "lib", "lib64", "sbin")),
    *(directory(f"usr/{name}") for name in ("bin", "lib", "lib64", "sbin")),
    *(directory(name) for name in ("dev", "proc", "run", "sys")),
    directory("tmp", mode=0o1777),
    directory("var/tmp", mode=0o1777),
    directory("root", mode=0o700),
    directory("home/user", mode=0o755, uid=1000, gid=1000),
    file("etc/passwd", ACCOUNTS),
    file("etc/group", GROUPS),
    file("etc/nsswitch.conf", NSSWITCH),
    link("var/run", "/run"),
    link("var/lock", "/run/lock"),
    directory("run/lock", mode=0o1777),
)

BASE = LayerRecipe(
    packages=(
        "base-files",
        "bash",
        "coreutils",
        "findutils",
        "grep",
        "gzip",
        "hostname",
        "libc-bin",
        "mawk",
        "ncurses-base",
        "procps",
        "sed",
        "tar",
    ),
    exclude=("debconf", "dpkg", "init-system-helpers", "install-info", "passwd", "perl-base"),
    entries=(
        *ROOT,
        link("usr/bin/awk", "mawk"),
        link("usr/bin/which", "which.debianutils"),
        # bash hands on variables such as "my.name", which Kubernetes allows; dash drops them.
        link("usr/bin/sh", "bash"),
    ),
)

BUSYBOX = LayerRecipe(
    packages=("bash-static", "busybox-static"),
    exclude=("debianutils", "passwd"),
    # Debian's busybox has no shell but ash, which drops variables with dots and dashes in their names.
    entries=(*ROOT, link("usr/bin/sh", "bash-static"), link("usr/bin/bash", "bash-static")),
    busybox="usr/bin/busybox",
)

PAUSE = LayerRecipe(
    programs=(Program(path="pause", source=(SOURCES / "pause.c").read_text(), flags=("-Os",)),),
)

WEB = LayerRecipe(
    packages=("nginx",),
    # iproute2 is for the init script.
    exclude=("iproute2",),
    entries=(
        file("etc/nginx/nginx.conf", nginx_conf(ports=(80, 8080), user="www-data")),
        file("etc/nginx/unprivileged.conf", nginx_conf(ports=(8080,))),
        file("usr/share/nginx/html/index.html", PAGE),
        file("usr/local/bin/web", (SOURCES / "web.sh").read_text(), mode=0o755),
    ),
)

NETTOOLS = LayerRecipe(
    packages=(
        "bind9-dnsutils",
        "curl",
        "iperf3",
        "iproute2",
        "iputils-ping",
        "lksctp-tools",
        "netbase",
        "netcat-openbsd",
        "qperf",
        "socat",
        "sockperf",
        "tcpdump",
    ),
    exclude=("adduser",),
    entries=(link("usr/bin/nc", "nc.openbsd"),),
)

SYSBENCH = LayerRecipe(
    packages=("sysbench",),
    # A client's configuration files, which need their own updater.
    exclude=("mariadb-common", "mysql-common"),
)

FIO = LayerRecipe(
    packages=("fio",),
    # Python is for the scripts that draw plots.
    exclude=("adduser", "dmsetup", "python3"),
)

STREAM = LayerRecipe(
    programs=(
        Program(
            path="usr/local/bin/stream", source=(SOURCES / "stream.c").read_text(), flags=("-O3", "-fopenmp", "-lm")
        ),
    ),
)

# All that `pinnace bench` runs. STREAM's and netperf's places have programs of ours.
BENCH = LayerRecipe(
    packages=(*SYSBENCH.packages, *FIO.packages, "dnsperf", "iperf3"),
    exclude=(*SYSBENCH.exclude, *FIO.exclude),
    programs=(
        *STREAM.programs,
        Program(path="usr/local/bin/rr", source=(SOURCES / "rr.c").read_text(), flags=("-O2",)),
    ),
)

PYTHON = LayerRecipe(packages=("python3",), entries=(link("usr/bin/python", "python3"),))

OPENMPI = LayerRecipe(
    packages=("openmpi-bin", "python3-mpi4py"),
    # Ranks on other hosts are started by Slurm.
    exclude=("openssh-client",),
    entries=(
        link("usr/bin/mpirun", "orterun"),
        link("usr/bin/mpiexec", "orterun"),
        link("usr/lib/libpsm_infinipath.so.1", "libpsm1/libpsm_infinipath.so.1.16"),
    ),
)

GRPC = LayerRecipe(
    packages=("python3-grpcio",),
    entries=(file("usr/local/bin/grpc-health", (SOURCES / "grpc-health").read_text(), mode=0o755),),
)

LINES = (SOURCES / "lines.c").read_text()
# It is compiled at every start, which takes a second.
LINES_JAVA = """\
#!/bin/sh
exec /usr/lib/jvm/java-17-openjdk-*/bin/java -Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \\
  --class-path '/usr/share/java/*' /usr/local/lib/lines/Lines.java "$@"
"""
# Programs that use sockets, each in its own way.
SOCKETS = LayerRecipe(
    packages=(
        "busybox-static", "libnetty-java", "nginx", "nodejs", "openjdk-17-jre-headless", "postgresql-15",
        "redis-server",
    ),
    # Scripts around the servers, the JIT compiler of one, and what Java has sound, fonts, printers and smart cards by.
    exclude=(
        "adduser", "ca-certificates-java", "debconf", "iproute2", "java-common", "libasound2", "libcups2",
        "libfontconfig1", "libfreetype6", "libharfbuzz0b", "libjpeg62-turbo", "liblcms2-2", "libllvm14", "libnss3",
        "libpcsclite1", "locales", "lsb-base", "perl", "postgresql-client-common", "postgresql-common", "ssl-cert",
        "ucf", "util-linux",
    ),
    entries=(
        file("usr/share/nginx/html/index.html", PAGE),
        file("usr/local/lib/lines/Lines.java", (SOURCES / "Lines.java").read_text()),
        file("usr/local/bin/lines-java", LINES_JAVA, mode=0o755),
        file("usr/local/bin/lines-node", f"#!/usr/bin/node\n{(SOURCES / 'lines.js').read_text()}", mode=0o755),
    ),
    programs=(
        Program(path="usr/local/bin/lines-glibc", source=LINES, flags=("-O2",)),
        Program(path="usr/local/bin/lines-musl", source=LINES, flags=("-O2",), compiler="musl-gcc"),
    ),
    modules=(GoSource(path="usr/local/bin/lines-go", source=(SOURCES / "lines.go").read_text(), version="1.25"),),
)  # fmt: skip

# Upstream's example of a driver for Dynamic Resource Allocation, which invents its devices.
DRA = LayerRecipe(
    modules=(
        GoProgram(
            path="usr/local/bin/dra-example-kubeletplugin",
            package="sigs.k8s.io/dra-example-driver/cmd/dra-example-kubeletplugin",
            lock=read_lock("dra-example-driver"),
        ),
    ),
)

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(name="busybox", layers=(BUSYBOX,), command=Command(cmd=("sh",))),
        Recipe(name="pause", layers=(PAUSE,), command=Command(entrypoint=("/pause",))),
        Recipe(name="shell", layers=(BASE,), command=Command(cmd=("bash",))),
        Recipe(
            name="web",
            layers=(BASE, WEB),
            # nginx ends at once on SIGTERM, and waits for its clients on SIGQUIT.
            command=Command(cmd=("web",), ports=("80/tcp", "8080/tcp"), stop_signal="SIGQUIT"),
        ),
        Recipe(name="nettools", layers=(BASE, NETTOOLS), command=Command(cmd=("bash",))),
        Recipe(name="sysbench", layers=(BASE, SYSBENCH), command=Command(entrypoint=("sysbench",), cmd=("--help",))),
        Recipe(name="fio", layers=(BASE, FIO), command=Command(entrypoint=("fio",), cmd=("--help",))),
        Recipe(name="stream", layers=(BASE, STREAM), command=Command(cmd=("stream",))),
        Recipe(name="bench", layers=(BASE, BENCH), command=Command(cmd=("bash",)), registry="localhost/pinnace"),
        Recipe(name="python", layers=(BASE, PYTHON), command=Command(cmd=("python3",))),
        Recipe(name="sockets", layers=(BASE, PYTHON, SOCKETS), command=Command(cmd=("python3",))),
        Recipe(name="openmpi", layers=(BASE, PYTHON, OPENMPI), command=Command(cmd=("python3",))),
        Recipe(name="dra", layers=(BASE, DRA), command=Command(cmd=("dra-example-kubeletplugin",))),
        Recipe(name="grpc", layers=(BASE, PYTHON, GRPC), command=Command(cmd=("grpc-health", "5000"))),
    )
}
