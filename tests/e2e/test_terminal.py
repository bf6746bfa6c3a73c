"""The ways into a running container: terminals, streams, ports, files."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from typing import TYPE_CHECKING

import pytest

from e2e.namespaces import Namespace, image, namespace, once, pod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.conftest import Kubectl

pytestmark = pytest.mark.bed

NAME = "terminal"
LISTEN = 'mkdir /www; echo "a page" > /www/index.html; exec httpd -f -p 8080 -h /www'
FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())"
COUNT = "for i in 1 2 3; do echo line $i; sleep 1; done"
CRASH = (
    "if [ -e /keep/been-here ]; then echo second life; sleep 3600; fi; touch /keep/been-here; echo first life; exit 1"
)
READ = "while read line; do echo got $line; done; echo the end"


@pytest.fixture(scope="module")
def here(cluster: Kubectl) -> Iterator[Namespace]:
    with namespace(cluster, NAME) as here:
        here.create(
            pod("shell", of="nettools", nodeName="n2"),
            pod("web", "sh", "-c", LISTEN, nodeName="n2"),
            once("reads", READ, container={"stdin": True, "stdinOnce": True}, nodeName="n2"),
            pod("crashes", "sh", "-c", CRASH, container={"volumeMounts": [{"name": "keep", "mountPath": "/keep"}]},
                volumes=[{"name": "keep", "emptyDir": {}}]),
        )  # fmt: skip
        here.ready("shell", "web", "reads")
        yield here


def test_a_terminal_has_a_size_and_an_exit_code(here: Namespace) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))
    until_right = 'for i in $(seq 60); do test "$(stty size)" = "33 111" && break; sleep 0.5; done'
    script = f"test -t 0 && test -t 1 && {{ {until_right}; stty size; }}; exit 5"
    process = here.popen("exec", "-it", "shell", "--", "sh", "-c", script, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
    except OSError:  # what Linux says at the end of a terminal
        pass
    os.close(ours)
    assert process.wait(30) == 5
    assert b"33 111" in said


def test_exec_passes_input_through(here: Namespace) -> None:
    data = "0123456789" * 100_000
    result = here.run("exec", "-i", "shell", "--", "md5sum", input=data)
    assert result.stdout.split()[0] == subprocess.run(
        ["md5sum"], input=data, capture_output=True, text=True, check=True, timeout=30
    ).stdout.split()[0]  # fmt: skip


def test_attach_speaks_to_the_first_process(here: Namespace) -> None:
    result = here.run("attach", "-i", "reads", input="one\ntwo\n")
    assert result.returncode == 0, result.stderr
    assert here.ended("reads") == "got one\ngot two\nthe end\n"


@pytest.mark.parametrize("target", ["pod/web"])
def test_a_port_is_forwarded(here: Namespace, target: str) -> None:
    with here.popen("port-forward", target, ":8080") as process:
        assert process.stdout
        found = re.match(r"Forwarding from 127.0.0.1:(\d+)", process.stdout.readline())
        assert found, process.stderr
        for _ in range(3):
            answer = here.user.run("/usr/bin/python3", "-c", FETCH, f"http://127.0.0.1:{found[1]}/")
            assert answer.stdout.strip() == "a page"
        process.terminate()


def test_the_api_is_a_way_to_pods(here: Namespace) -> None:
    path = f"/api/v1/namespaces/{NAME}/pods/web:8080/proxy/"
    assert here("get", "--raw", path).strip() == "a page"


def test_logs_follow_a_container_to_its_end(here: Namespace) -> None:
    here.create(once("counts", COUNT, nodeName="n2"))
    here.wait("pod/counts", "jsonpath={.status.containerStatuses[0].containerID}")  # it may have ended by then
    assert here("logs", "-f", "counts").splitlines() == ["line 1", "line 2", "line 3"]
    assert here("logs", "counts", "--tail=1").strip() == "line 3"
    assert re.match(r"\d{4}-\d\d-\d\dT.* line 1", here("logs", "counts", "--timestamps"))


def test_the_log_of_the_life_before(here: Namespace) -> None:
    here.wait("pod/crashes", "jsonpath={.status.containerStatuses[0].restartCount}=1")
    here.ready("crashes")
    assert here("logs", "crashes").strip() == "second life"
    assert here("logs", "crashes", "--previous").strip() == "first life"


def test_directories_are_copied_both_ways(here: Namespace) -> None:
    here.user.run("mkdir", "-p", "tree/deep/er")
    here.user.run("sh", "-c", "echo one > tree/file; echo two > 'tree/deep/er/with space'")
    here("cp", "tree", f"{NAME}/shell:/tmp/tree")
    assert here.sh("shell", "cd /tmp/tree && cat file 'deep/er/with space'") == "one\ntwo\n"
    here.sh("shell", "echo three >> /tmp/tree/file")
    here("cp", f"{NAME}/shell:/tmp/tree", "back")
    assert here.user.run("cat", "back/file", "back/deep/er/with space").stdout == "one\nthree\ntwo\n"


def test_a_container_is_debugged_by_another_one(here: Namespace) -> None:
    """It shares the processes, and through them the files, of one that has neither shell nor tools."""
    script = "cat /proc/1/root/www/index.html; cat /proc/1/cmdline | tr '\\0' ' '"
    here("debug", "web", f"--image={image('nettools')}", "-c", "looker", "--target=main", "--profile=sysadmin", "--",
         "sh", "-c", script)  # fmt: skip
    here.wait("pod/web", "jsonpath={.status.ephemeralContainerStatuses[0].state.terminated.exitCode}=0")
    said = here("logs", "web", "-c", "looker")
    assert "a page" in said
    assert "httpd" in said


def test_a_node_is_debugged(here: Namespace) -> None:
    said = here("debug", "node/n2", f"--image={image('nettools')}", "--profile=sysadmin", "--",
                "sh", "-c", "ls /host/etc/hostname; ps -eo comm | sort -u")  # fmt: skip
    name = re.search(r"node-debugger-n2-\w+", said)
    assert name, said
    said = here.ended(name[0])
    assert "/host/etc/hostname" in said
    assert {"containerd", "kubelet", "kube-proxy"} <= set(said.split())
