"""An account as sites have them: of a directory service, with a dot in its name, a home that is a link, and tcsh."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from e2e.conftest import Kubectl, User, make_user
from e2e.left import assert_nothing_left
from e2e.podjobs import log_of, manifest, wait_for_phase
from e2e.test_run import EXAMPLES

if TYPE_CHECKING:
    from testbed import Bed

pytestmark = [pytest.mark.bed, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def erin(site: Bed) -> User:
    return make_user(site, "erin.doe", "busybox")


def test_the_account_is_what_it_is_meant_to_be(erin: User) -> None:
    assert "erin.doe:" not in (erin.bed.directories.etc / "passwd").read_text()
    said = erin.run("srun", "sh", "-c", 'id -un; echo $SHELL; readlink "$HOME"').stdout
    assert said.splitlines() == ["erin.doe", "/bin/tcsh", "people/erin.doe"]


def test_subordinate_ids_are_found_by_the_users_number(erin: User) -> None:
    rows = json.loads(erin.pinnace("doctor", "-o", "json", code=None).stdout)
    assert [row["state"] for row in rows if row["name"] == "subordinate ids"] == ["ok"]


@pytest.mark.parametrize(("umask", "locale"), [("000", "tr_TR.ISO-8859-9"), ("077", "C")])
def test_a_cluster_on_two_nodes_whatever_umask_and_locale(erin: User, umask: str, locale: str) -> None:
    example = erin.write("hello.yaml", (EXAMPLES / "hello.yaml").read_text())
    command = f"umask {umask}; setenv LC_ALL {locale}; exec pinnace run -N 2 --image busybox.tar {example}"
    result = erin.run("tcsh", "-c", command)
    assert result.stdout.count("hello from") == 2
    ours = [".local/share/pinnace/", ".kube/"]
    writable = ["find", *ours, "-path", ".kube/cache", "-prune", "-o", "!", "-type", "l", "-perm", "/022", "-print"]
    assert erin.run(*writable).stdout == "", "others could change it"
    assert_nothing_left(erin)


@pytest.mark.parametrize("mapped", ["--map-current-user", "--map-root-user"])
def test_a_job_that_is_in_namespaces_already(erin: User, mapped: str) -> None:
    """A user namespace with one id, and a PID namespace: nobody else can be there, and all runs as the user."""
    example = erin.write("hello.yaml", (EXAMPLES / "hello.yaml").read_text())
    inside = ["env", "PINNACE_IMAGE_CACHE=0", "unshare", "--user", mapped, "--pid", "--fork", "--mount-proc"]
    result = erin.run("srun", "--mem=4G", *inside, "pinnace", "run", "--local", "--image", "busybox.tar", example)
    assert result.stdout.count("hello from") == 2
    assert_nothing_left(erin)


def test_pods_are_jobs(erin: User) -> None:
    erin.run("tcsh", "-c", "umask 077; exec pinnace up --pods-as-jobs --name jobs --image busybox.tar")
    kubectl = Kubectl(user=erin, cluster="jobs")
    kubectl.apply(manifest("one", ["sh", "-c", "id -u; chown 7:7 /tmp && echo changed"]))
    assert wait_for_phase(kubectl, "one", "Succeeded", "Failed")["phase"] == "Succeeded"
    assert log_of(kubectl, "one") == "0\nchanged\n"
    erin.pinnace("down", "jobs")
    assert_nothing_left(erin)
