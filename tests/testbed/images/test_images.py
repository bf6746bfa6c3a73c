"""The real images: built, unpacked, and every tool in them run."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.image_samples import read_layout
from testbed.images import RECIPES, build_image, build_images, debs
from testbed.images.cache import Cache
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.running_images import Container

    Containers = Callable[[str], Container]

pytestmark = pytest.mark.build

EVERY = pytest.mark.parametrize("name", RECIPES)
ON_BASE = [name for name, recipe in RECIPES.items() if recipe.layers[0] is RECIPES["shell"].layers[0]]
FETCH = 'exec 3<>/dev/tcp/127.0.0.1/{port}; printf "GET {path} HTTP/1.0\\r\\n\\r\\n" >&3; cat <&3'
UNTIL_SERVED = "web >/dev/null & for _ in {{1..200}}; do sleep 0.1; ({fetch}) 2>/dev/null && exit; done; exit 1"


def serve(*, port: int, path: str = "/") -> str:
    """Return a script for bash that starts the web server and fetches one page from it."""
    return UNTIL_SERVED.format(fetch=FETCH.format(port=port, path=path))


@EVERY
def test_layout_is_valid(name: str) -> None:
    layout = read_layout(build_image(name))
    assert layout.reference == RECIPES[name].reference


@EVERY
def test_built_again_elsewhere_it_is_the_same(name: str, tmp_path: Path) -> None:
    """Only the downloaded packages are shared."""
    [built] = build_images([name])
    [again] = build_images([name], cache=Cache(root=tmp_path, debs=Cache.default().debs))
    assert again.digest == built.digest
    assert again.path.read_bytes() == built.path.read_bytes()


@EVERY
def test_from_the_cache_it_comes_at_once(name: str) -> None:
    build_image(name)
    before = sum(os.times()[:4])  # on the processors, also of children: this machine may be busy
    build_image(name)
    assert sum(os.times()[:4]) - before < 0.2


def test_the_base_layer_is_shared() -> None:
    lowest = {read_layout(build_image(name)).manifest["layers"][0]["digest"] for name in ON_BASE}
    assert len(ON_BASE) > 5
    assert len(lowest) == 1


@pytest.mark.parametrize("name", [*ON_BASE, "busybox"])
def test_the_tree_is_that_of_a_debian(name: str, container: Containers) -> None:
    root = container(name).root
    assert {path: (root / path).readlink() for path in ("bin", "sbin", "lib", "lib64")} == {
        path: Path("usr") / path for path in ("bin", "sbin", "lib", "lib64")
    }
    assert stat.S_IMODE((root / "tmp").stat().st_mode) == 0o1777
    assert (root / "var/run").readlink() == Path("/run")
    assert not (root / "usr/share/doc").exists()
    assert not (root / "usr/share/man").exists()
    assert not list(root.glob("usr/bin/perl*"))


@pytest.mark.parametrize("name", ON_BASE)
def test_no_program_lacks_a_library(name: str, container: Containers) -> None:
    root = container(name).root
    programs = [path for path in root.glob("usr/*bin/*") if is_elf(path)]
    script = 'for f; do ld.so --list "$f" >/tmp/list 2>&1 || { grep -q "statically" /tmp/list || cat /tmp/list; }; done'
    loader = next(path for path in root.glob("usr/lib64/ld-linux*")).name
    script = script.replace("ld.so", f"/lib64/{loader}")
    said = container(name).run("bash", "-c", script, "bash", *(f"/{path.relative_to(root)}" for path in programs))
    assert "error" not in said
    assert "not found" not in said


@pytest.mark.parametrize("name", [*ON_BASE, "busybox"])
def test_no_link_in_the_path_points_nowhere(name: str, container: Containers) -> None:
    links = [path for path in container(name).root.glob("usr/*bin/*") if path.is_symlink()]
    paths = [f"/{path.relative_to(container(name).root)}" for path in links]
    said = container(name).run("sh", "-c", 'for f; do [ -e "$f" ] || echo "$f"; done', "sh", *paths)
    assert said.split() == []


def is_elf(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF"


@pytest.mark.parametrize("name", ["busybox", "shell"])
def test_the_shell_keeps_names_that_kubernetes_allows(name: str, container: Containers) -> None:
    said = container(name).run("sh", "-c", "env", env={"my.dotted-name": "kept"})
    assert "my.dotted-name=kept" in said.splitlines()


def test_busybox_has_its_applets(container: Containers) -> None:
    box = container("busybox")
    assert box.run("sh", "-c", "echo $((6 * 7)) | awk '{print $1 + 1}'") == "43\n"
    assert box.run("ash", "-c", "id -un").strip() == "root"
    assert {"wget", "nc", "vi", "ping", "httpd"} <= set(box.run("busybox", "--list").split())
    assert box.run("whoami", user="1000:1000").strip() == "user"


def test_shell_is_an_ordinary_userland(container: Containers) -> None:
    shell = container("shell")
    script = (
        "set -e; find /etc -name passwd | xargs grep -c user; echo b a | tr ' ' '\\n' | sort | sed s/a/A/;"
        "tar -cz -f /tmp/x.tgz /etc/passwd 2>/dev/null; tar -tzf /tmp/x.tgz; ps -o comm= -p 1; which awk"
    )
    said = shell.run("bash", "-c", script).splitlines()
    assert said == ["1", "A", "b", "etc/passwd", "bash", "/usr/bin/awk"]
    assert "PRETTY_NAME=" in shell.run("cat", "/etc/os-release")
    assert shell.run("getent", "passwd", "1000").startswith("user:")


def test_web_accepts_its_configurations(container: Containers) -> None:
    web = container("web")
    assert "test is successful" in web.run("web", "-t")
    assert "test is successful" in web.run("web", "-t", user="1234:1234")


@pytest.mark.parametrize(("user", "port"), [("0:0", 80), ("0:0", 8080), ("1234:0", 8080)])
def test_web_serves_a_page(container: Containers, user: str, port: int) -> None:
    assert "It works" in container("web").run("bash", "-c", serve(port=port), user=user)


def test_web_says_which_host_it_is(container: Containers) -> None:
    script = f"hostname pod-7; {serve(port=80, path='/hostname')}"
    assert container("web").run("bash", "-c", script).splitlines()[-1] == "pod-7"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("dig -v", "DiG 9"),
        ("curl --version", "libcurl/"),
        ("ip -brief address show lo", "127.0.0.1/8"),
        ("ss --version", "iproute2"),
        ("ping -c 1 127.0.0.1", "1 received"),
        ("tcpdump --version", "libpcap"),
        ("socat -V", "socat version"),
        ("iperf3 --version", "iperf 3"),
        ("command -v sctp_darn", "/usr/bin/sctp_darn"),  # to run, it needs a kernel with SCTP
        ("ps -e", "ps"),
    ],
)
def test_nettools_are_there(container: Containers, command: str, expected: str) -> None:
    assert expected in container("nettools").run("bash", "-c", command)


@pytest.mark.parametrize(
    ("server", "client", "expected"),
    [
        ("iperf3 -s -1", "iperf3 -J -c 127.0.0.1 -n 20M", "bits_per_second"),
        ("qperf", "qperf -t 1 127.0.0.1 tcp_lat", "latency"),
        ("sockperf server --tcp -i 127.0.0.1 -p 7000", "sockperf ping-pong --tcp -i 127.0.0.1 -p 7000 -t 1", "avg-lat"),
        ("nc -l -p 7001 </etc/hostname.test", "nc -d -w 3 127.0.0.1 7001", "a name"),
        ("socat TCP-LISTEN:7002,fork EXEC:/bin/cat", "echo round trip | socat -t 2 - TCP:127.0.0.1:7002", "round trip"),
    ],
)
def test_nettools_talk(container: Containers, server: str, client: str, expected: str) -> None:
    ask = f'said=$({client} 2>&1) && [[ $said == *"{expected}"* ]] && echo "$said" && exit'
    until_answered = f'for _ in {{1..100}}; do sleep 0.2; {ask}; done; echo "$said"; exit 1'
    script = f"echo a name >/etc/hostname.test; {server} >/dev/null 2>&1 & {until_answered}"
    assert expected in container("nettools").run("bash", "-c", script)


def test_python_has_its_standard_library(container: Containers) -> None:
    modules = "ssl, sqlite3, ctypes, lzma, bz2, zlib, json, http.server, multiprocessing, curses, readline, uuid, dbm"
    said = container("python").run("python", "-c", f"import {modules}; print(ssl.OPENSSL_VERSION, ctypes.CDLL(None))")
    assert said.startswith("OpenSSL 3")


def test_sysbench_measures(container: Containers) -> None:
    assert "events per second" in container("sysbench").run("sysbench", "cpu", "--time=1", "run")
    assert "MiB/sec" in container("sysbench").run("sysbench", "memory", "--memory-total-size=100M", "run")


def test_fio_measures(container: Containers) -> None:
    options = ["--name=x", "--size=4M", "--rw=randwrite", "--bs=4k", "--directory=/tmp", "--output-format=json"]
    for engine in ("psync", "libaio"):
        said = container("fio").run("fio", f"--ioengine={engine}", *options)
        assert json.loads(said[said.index("{") :])["jobs"][0]["write"]["io_bytes"] == 4 << 20


def test_stream_measures(container: Containers) -> None:
    lines = container("stream").run("stream", "1000000", "5").splitlines()
    rates = {line.split()[0]: float(line.split()[1]) for line in lines[1:5]}
    assert list(rates) == ["Copy", "Scale", "Add", "Triad"]
    assert min(rates.values()) > 100
    assert lines[-1] == "values are as expected"


@pytest.fixture
def pause(container: Containers) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The process that started /pause as the first of a PID namespace, and its PID out here."""
    with subprocess.Popen(container("pause").argv("/pause")) as process:
        try:
            wait_until("/pause to run", lambda: [name_of(pid) for pid in children(process.pid)] == ["pause"], limit=60)
            wait_until("/pause to wait for signals", lambda: sleeps(children(process.pid)[0]), limit=60)
            yield process, children(process.pid)[0]
        finally:
            process.kill()


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def sleeps(pid: int) -> bool:
    """Whether a process waits: until it does so for signals, the first of a PID namespace is deaf to them."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_pause_stays_and_reaps(pause: tuple[subprocess.Popen[bytes], int]) -> None:
    process, pid = pause
    orphans = "for i in 1 2 3; do sleep 5 & done"
    subprocess.run(["nsenter", f"--target={pid}", "--pid", "sh", "-c", orphans], check=True, timeout=60)
    wait_until("three orphans", lambda: [name_of(child) for child in children(pid)] == ["sleep"] * 3, limit=60)
    wait_until("the orphans to be reaped", lambda: not children(pid), limit=60)
    assert process.poll() is None


@pytest.mark.parametrize("signal_", [signal.SIGTERM, signal.SIGINT])
def test_pause_ends_when_asked(pause: tuple[subprocess.Popen[bytes], int], signal_: signal.Signals) -> None:
    process, pid = pause
    os.kill(pid, signal_)
    assert process.wait(timeout=60) == 0


@pytest.fixture(scope="module")
def ctr(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """``ctr`` with a containerd of its own, from Debian's package, unpacked and not installed."""
    home = tmp_path_factory.mktemp("containerd")
    [package] = debs.show(["containerd"], cache=home)
    debs.download([package], cache=home, into=home)
    subprocess.run(["dpkg-deb", "--extract", str(home / package.file), str(home)], check=True, timeout=60)
    config = home / "config.toml"
    config.write_text('version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n')
    socket = home / "socket"
    argv: list[str | Path] = [home / "usr/bin/containerd", "--config", config, "--address", socket]
    argv += ["--root", home / "root", "--state", home / "state"]
    with (home / "log").open("w") as log, subprocess.Popen(argv, stdout=log, stderr=log) as process:
        try:
            wait_until("containerd's socket", socket.exists, limit=60, log=home / "log")
            yield [str(home / "usr/bin/ctr"), "-a", str(socket), "-n", "k8s.io"]
        finally:
            process.terminate()


@EVERY
def test_containerd_imports_and_unpacks(name: str, ctr: list[str]) -> None:
    path = build_image(name)
    argv = [*ctr, "images", "import", "--snapshotter", "native", str(path)]
    subprocess.run(argv, check=True, timeout=120, stdout=subprocess.DEVNULL)
    listed = subprocess.run([*ctr, "images", "list"], check=True, timeout=10, capture_output=True, text=True).stdout
    [row] = [line.split() for line in listed.splitlines() if line.startswith(f"{RECIPES[name].reference} ")]
    assert row[2] == read_layout(path).digest
    checked = subprocess.run(
        [*ctr, "images", "check", f"name=={RECIPES[name].reference}"],
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    ).stdout
    assert "complete" in checked


def test_compiled_images_name_their_compiler() -> None:
    for name in ("pause", "stream"):
        [built] = build_images([name])
        assert {"gcc", "libc6-dev", "binutils"} <= {word.partition("=")[0] for word in built.inputs}
