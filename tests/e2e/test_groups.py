"""The user's groups in pods: a project's directory is open to those who ask for no groups of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from e2e.namespaces import Namespace, Object, namespace, once, pod
from testbed.plan import GROUPS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from e2e.conftest import Kubectl, User

pytestmark = pytest.mark.bed

PROJECT, SURVEY = GROUPS
UNMAPPED = 65534
MOUNTS = {"volumeMounts": [{"name": "groups", "mountPath": "/groups"}]}
WRITE = "umask 007 && echo $HOSTNAME > /groups/project/$HOSTNAME"
# As a server that begins as root does: it wants the groups of another user, and is told that it has them.
DROP = """
import os, pathlib
os.setgroups([5])
os.setresgid(1000, 1000, 1000)
os.setresuid(1000, 1000, 1000)
pathlib.Path("/groups/project/drops").touch(0o660)
"""
CLOSED = "ls /groups/project 2> /dev/null || echo closed"


def with_groups(made: Object, **spec: Any) -> Object:
    """A pod that mounts the directories of all groups."""
    main = made["spec"]["containers"][0] | MOUNTS
    volumes = [{"name": "groups", "hostPath": {"path": "/home/groups"}}]
    return made | {"spec": made["spec"] | {"containers": [main], "volumes": volumes} | spec}


def annotated(made: Object) -> Object:
    return made | {"metadata": made["metadata"] | {"annotations": {"pinnace.dev/user-groups": "false"}}}


def objects() -> list[Object]:
    user = {"runAsUser": 1000, "runAsGroup": 1000}
    confined = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    probe = {"exec": {"command": ["test", "-w", "/groups/survey"]}, "periodSeconds": 1}
    return [
        with_groups(pod("plain", "sh", "-c", f"{WRITE}; sleep 3600", container={"readinessProbe": probe})),
        with_groups(once("other-user", f"{WRITE} && id -g && id -G", securityContext=user)),
        with_groups(once("confined", WRITE, securityContext=user, container={"securityContext": confined})),
        with_groups(once("in-hosts-network", WRITE, runtimeClassName="host-network")),
        with_groups(once("drops", f"python3 -c '{DROP}'", of="python")),
        with_groups(pod("fs-group", "sh", "-c", f"{CLOSED}; id -G; sleep 3600", securityContext={"fsGroup": 1234})),
        with_groups(annotated(once("of-its-image", f"{CLOSED}; id -G"))),
        with_groups(once("own", f"{CLOSED}; id -G", securityContext=user | {"supplementalGroups": [4567]})),
    ]


@pytest.fixture(scope="module")
def here(cluster: Kubectl) -> Iterator[Namespace]:
    with namespace(cluster, "groups") as here:
        here.create(*objects())
        yield here


@pytest.fixture
def project(alice: User) -> Path:
    return alice.home.parent / PROJECT.directory


def owner(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_uid, about.st_gid


def outside(user: User, uid: int) -> int:
    """The ID on the hosts of a user of the user's pods, other than root."""
    return min(user.uids - {user.uid}) + uid - 1


def test_a_pod_writes_into_the_directory_of_a_project_and_others_of_the_project_read_it(
    here: Namespace, project: Path, bob: User
) -> None:
    here.ready("plain")  # its probe is a process in the container, too
    assert owner(project / "plain") == (here.user.uid, PROJECT.gid)
    assert bob.run("cat", f"/home/{PROJECT.directory}/plain").stdout == "plain\n"


def test_what_is_executed_in_a_container_has_the_same_groups(here: Namespace, project: Path) -> None:
    here.ready("plain")
    assert set(here.sh("plain", "id -G").split()) == {"0", str(UNMAPPED)}
    here.sh("plain", "umask 007; echo later > /groups/project/executed; echo more >> /groups/project/plain")
    assert owner(project / "executed") == (here.user.uid, PROJECT.gid)
    assert (project / "plain").read_text() == "plain\nmore\n"


def test_every_user_of_a_pod_has_them(here: Namespace, project: Path) -> None:
    group, *groups = here.ended("other-user").split()
    assert group == "1000"
    assert {"0", str(UNMAPPED)} <= set(groups)
    for name in ("other-user", "confined", "drops"):
        here.ended(name)
        assert owner(project / name) == (outside(here.user, 1000), PROJECT.gid), name


def test_a_pod_in_its_hosts_network_has_them(here: Namespace, project: Path) -> None:
    here.ended("in-hosts-network")
    assert owner(next(project.glob("in-hosts-network"))) == (here.user.uid, PROJECT.gid)


def test_a_pod_that_asks_for_groups_has_those_alone(here: Namespace) -> None:
    here.ready("fs-group")
    for said in (here("logs", "fs-group"), here.sh("fs-group", f"{CLOSED}; id -G")):
        closed, groups = said.splitlines()
        assert closed == "closed"
        assert "1234" in groups.split()
        assert str(UNMAPPED) not in groups.split()
    assert here.ended("own") == "closed\n1000 4567\n"


def test_a_pod_can_do_without_them(here: Namespace) -> None:
    closed, groups = here.ended("of-its-image").splitlines()
    assert closed == "closed"
    assert str(UNMAPPED) not in groups.split()
