"""The product on the test bed, as a site would install it and a user would use it."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conftest import TEST_STATE, bed_at, one_worker_at_a_time
from testbed import roots
from testbed.images import build_image
from testbed.software import install
from testbed.state import Directories

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from testbed import Bed
    from testbed.plan import Plan

PROJECT = Path(__file__).parents[2]
LIMIT = 120.0
PORTS, PUBLISHED = "41000-41399", 30930  # of the shared cluster


@dataclass(kw_only=True)
class User:
    """Somebody on the login node."""

    bed: Bed
    name: str

    @property
    def home(self) -> Path:
        """The home directory, from outside."""
        return self.bed.directories.home / self.name

    @property
    def uid(self) -> int:
        return self.home.stat().st_uid

    @property
    def uids(self) -> set[int]:
        """The user's own, and those of /etc/subuid."""
        lines = (self.bed.directories.etc / "subuid").read_text().splitlines()
        ranges = [line.split(":")[1:] for line in lines if line.split(":")[0] in {self.name, str(self.uid)}]
        return {self.uid, *(uid for begin, count in ranges for uid in range(int(begin), int(begin) + int(count)))}

    def run(
        self, *argv: str, code: int | None = 0, timeout: float = LIMIT, on: str = "login"
    ) -> subprocess.CompletedProcess[str]:
        result = self.bed.run(argv, user=self.name, on=on, check=False, timeout=timeout)
        if code is not None:
            assert result.returncode == code, f"{argv}: {result.returncode}\n{result.stdout}\n{result.stderr}"
        assert "Traceback" not in result.stderr, result.stderr
        return result

    def pinnace(self, *argv: str, code: int | None = 0, timeout: float = LIMIT) -> subprocess.CompletedProcess[str]:
        return self.run("pinnace", *argv, code=code, timeout=timeout)

    def write(self, name: str, content: str, mode: int = 0o644) -> str:
        path = self.home / name
        path.write_text(content)
        path.chmod(mode)
        return name


@dataclass(kw_only=True)
class Kubectl:
    """kubectl of a user on a cluster: the one that `pinnace kubectl` would become, without the time that takes."""

    user: User
    cluster: str

    @functools.cached_property
    def command(self) -> list[str]:
        directory = f".local/share/pinnace/clusters/{self.cluster}"
        about = json.loads((self.user.home / directory / "cluster.json").read_text())
        return [about["binaries"]["kubectl"], f"--kubeconfig=/home/{self.user.name}/{directory}/kubeconfig"]

    def __call__(self, *words: str, code: int | None = 0, timeout: float = LIMIT) -> str:
        return self.user.run(*self.command, *words, code=code, timeout=timeout).stdout

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "-o", "json"))

    def apply(self, manifest: str) -> None:
        self("apply", "-f", self.user.write("manifest.yaml", manifest))


@pytest.fixture(scope="session")
def site(bed: Bed, real_store: Path) -> Bed:
    """The bed with pinnace installed for all its users, and the test images in everybody's home."""
    with one_worker_at_a_time():
        install(bed, PROJECT, share=real_store.parent, extras="[s3]")
    return bed


@contextlib.contextmanager
def another_site(name: str, plan: Plan, real_store: Path) -> Iterator[Bed]:
    """A bed of its own, beside that of the other tests, with pinnace installed."""
    roots.ensure(plan.generation, Directories().cache)  # other workers need not wait for it
    with bed_at(TEST_STATE.with_name(f"{TEST_STATE.name}-{name}"), plan) as bed:
        with one_worker_at_a_time():
            install(bed, PROJECT, share=real_store.parent)
        yield bed


@pytest.fixture(scope="session")
def alice(site: Bed) -> User:
    return make_user(site, "alice", "busybox", "grpc", "nettools", "python")


@pytest.fixture(scope="session")
def bob(site: Bed) -> User:
    """Another one, whose clusters come and go while alice's stays."""
    return make_user(site, "bob", "busybox")


@pytest.fixture(scope="session")
def carol(site: Bed) -> User:
    """Has no entry in /etc/subuid."""
    return make_user(site, "carol", "busybox", "nettools")


def make_user(site: Bed, name: str, *images: str) -> User:
    user = User(bed=site, name=name)
    for image in images:
        shutil.copy(build_image(image), user.home / f"{image}.tar")
        (user.home / f"{image}.tar").chmod(0o644)
    return user


@pytest.fixture(scope="session")
def cluster(alice: User) -> Iterator[Kubectl]:
    """A cluster of two nodes that the tests share."""
    images = [word for image in ("busybox", "nettools", "python") for word in ("--image", f"{image}.tar")]
    ports = ["--ports", PORTS, "--publish", str(PUBLISHED)]
    alice.pinnace("up", "-N", "2", "--name", "shared", "--mem", "4G", *ports, *images)
    yield Kubectl(user=alice, cluster="shared")
    alice.pinnace("down", "shared")
