"""Files of jobs: nothing is read or written outside the directory, and nothing is waited for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pinnace.bridge import files, staging
from pinnace.bridge.files import CopyBudget, Tree
from pinnace.errors import StagingError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(30)  # a FIFO that is opened would hang for ever


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job's directory with everything in it that a job could leave there; the secret is the bridge's."""
    job = tmp_path / "job"
    (job / "d" / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_text("s")
    (tmp_path / "elsewhere").mkdir()
    (job / "good").write_text("g")
    (job / "d" / "file").write_text("f")
    (job / "link").symlink_to(tmp_path / "secret")
    (job / "up").symlink_to("../secret")
    (job / "inner").symlink_to("d/file")
    (job / "way").symlink_to(tmp_path / "elsewhere")
    (job / "round").symlink_to("round")
    os.mkfifo(job / "fifo")
    return job


def read(tree: Tree, name: str) -> bytes:
    with tree.read(name) as file:
        return file.read()


def test_links_are_followed_as_long_as_they_stay_inside(job: Path) -> None:
    with Tree(job) as tree:
        assert (read(tree, "good"), read(tree, "inner")) == (b"g", b"f")
        for name in ("../secret", "/etc/passwd", "d/../../secret", "link", "up", "way/x", "round", "a\nb", ""):
            with pytest.raises(StagingError, match="outside"):
                read(tree, name)


def test_what_is_no_file_is_never_waited_for(job: Path) -> None:
    with Tree(job) as tree:
        for name in ("fifo", "d"):
            with pytest.raises(StagingError, match="no regular file"):
                read(tree, name)
        with pytest.raises(StagingError, match="no regular file"):
            files.copy_from_path(job / "fifo", tree, "copy", CopyBudget())
    with pytest.raises(StagingError, match="no regular file"):
        files.read_path(job / "fifo", 100)


def test_what_was_there_is_replaced_and_never_opened(job: Path, tmp_path: Path) -> None:
    with Tree(job) as tree:
        for name in ("good", "fifo", "d/new/deep", "up"):
            tree.write(name, lambda file: file.write(b"new"))
            assert (job / name).read_bytes() == b"new"
        with pytest.raises(StagingError, match="outside"):
            tree.write("way/x", lambda file: file.write(b"new"))
    files.replace_file(job / "link", "mark")
    assert (tmp_path / "secret").read_text() == "s"
    assert not list((tmp_path / "elsewhere").iterdir())
    assert not list(job.rglob("*.part"))


def test_patterns(job: Path) -> None:
    (job / "d" / "sub" / "file").write_text("x")
    os.symlink("..", job / "d" / "sub" / "back")  # noqa: PTH211
    assert staging.matches(job, "g*") == ["good"]
    assert staging.matches(job, "**/**/**/file") == ["d/file", "d/sub/file"]
    assert staging.matches(job, "d/file") == ["d/file"]
    for pattern in ("l*", "up", "way"):
        with pytest.raises(StagingError, match="outside"):
            staging.matches(job, pattern)
    with pytest.raises(StagingError, match="outside"):
        staging.matches(job, "../*")
    for absent in ("absent", "absent/x", "absent/*", "d/*/x"):
        with pytest.raises(StagingError, match="no result"):
            staging.matches(job, absent)
    with Tree(job) as tree, pytest.raises(StagingError, match="too many"):
        tree.matches("**/x", CopyBudget(files=3))


def test_directories_are_copied_whole(job: Path, tmp_path: Path) -> None:
    (job / "d" / "out").symlink_to(tmp_path / "secret")
    (job / "d" / "file").chmod(0o755)
    with Tree(job) as tree, Tree(tmp_path / "x" / "y", make=True) as target:
        files.copy(tree, "d", target, "d", CopyBudget())
        files.copy(tree, "inner", target, "inner", CopyBudget())
        for name in ("link", "fifo"):
            with pytest.raises(StagingError):
                files.copy(tree, name, target, name, CopyBudget())
    copied = tmp_path / "x" / "y"
    assert (copied / "d" / "file").stat().st_mode & 0o777 == 0o755
    assert (copied / "inner").read_text() == "f"
    assert (copied / "d" / "out").is_symlink()  # as it was: what it leads to was not read
    with Tree(tmp_path / "z", make=True) as target:
        files.copy_from_path(job / "d", target, "into/d", CopyBudget())
    assert (tmp_path / "z" / "into" / "d" / "file").read_text() == "f"


def test_a_copy_has_a_limit(job: Path, tmp_path: Path) -> None:
    with Tree(job) as tree, Tree(tmp_path / "x", make=True) as target:
        with pytest.raises(StagingError, match="too many"):
            files.copy(tree, "d", target, "d", CopyBudget(files=1))
        with pytest.raises(StagingError, match="could not be copied in"):
            files.copy(tree, "d", target, "d", CopyBudget(seconds=0))


@pytest.mark.parametrize(
    "text",
    [
        "/proc/self/environ",
        "/proc/self/cwd/x",
        "/tmp/../dev/zero",
        "/dev/zero",
        "relative",
        "/a\nb",
        "/sys/x",
        "~nobody-here/x",
    ],
)
def test_places_that_no_job_may_name(text: str) -> None:
    with pytest.raises(StagingError):
        files.absolute_path(text)


def test_a_link_to_what_the_kernel_shows_of_the_bridge(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc/self")
    with pytest.raises(StagingError, match="kernel's"):
        files.absolute_path(str(tmp_path / "link" / "environ"))
