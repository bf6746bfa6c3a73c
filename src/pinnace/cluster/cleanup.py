"""Removing what a killed command has left: the directories of clusters that ended with it.

A cluster of `pinnace run` ends with that command, even if it is killed with SIGKILL, but then nobody removes its
directory. The next command that lists or starts clusters does, where that is safe beyond doubt: never a cluster that
was retained, nor one that may live. Whatever cannot be decided stays, and `pinnace list` shows it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from typing import TYPE_CHECKING

from pinnace.cluster import launching
from pinnace.cluster.cluster_job import has_ended
from pinnace.cluster.directory import OWNER, Directory, all_clusters, clusters_root
from pinnace.cluster.ending import remove_volumes
from pinnace.cluster.kubeconfig import has_context, unmerge
from pinnace.errors import PinnaceError
from pinnace.podjobs.submission import claimed
from pinnace.removal import remove_tree
from pinnace.slurm.commands import Slurm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pinnace.cluster.job_record import ClusterJobRecord

# Seconds without a change after which nobody works on a directory any more: neither a command on another host that has
# just seen its cluster end, nor an sbatch that outlived the command that started it.
QUIET_LIMIT = 300.0
REMOVED = ".removed-"  # begins the name that a directory has while it is removed


def remove_dead_clusters() -> list[str]:
    """Remove the directories of clusters whose commands were killed, and give their names. Never fails."""
    removed = []
    with contextlib.suppress(PinnaceError, OSError):
        _finish_removals()
        for name in [directory.name for directory in all_clusters()]:
            with _undecided():
                directory = Directory.existing(name)
                if (owner := directory.owner) and is_dead(directory, owner) and _remove(directory, owner):
                    removed.append(name)
    return removed


@contextlib.contextmanager
def _undecided() -> Iterator[None]:
    """Leave a directory alone that cannot be read, or of which Slurm does not answer."""
    with contextlib.suppress(PinnaceError, OSError, ValueError, TypeError, LookupError):
        yield


def is_dead(directory: Directory, owner: ClusterJobRecord) -> bool:
    """Whether a cluster ended with a process that is gone, and nothing of it runs any more.

    Batch jobs are not bound to a process (``pid``): they, and what they leave, are for `pinnace down`.
    """
    record = directory.job_record
    processes = (owner, record or owner)
    if any(process.retain or process.pid is None or process.alive for process in processes):
        return False
    certain = all(process.can_be_checked for process in processes)
    if not owner.local and _has_jobs(directory.name):
        return False
    if record and owner.local and certain:
        return True
    head = directory.head
    if head is None:  # no agent has started; without the command and its srun, none will
        return certain and _is_quiet(directory)
    ended = head.is_over or (not owner.local and head.job is not None and _job_has_ended(directory.name, head.job))
    return ended and (certain or _is_quiet(directory))


def _has_jobs(name: str) -> bool:
    """Whether Slurm has a job that runs this cluster, or one of its pods."""
    comment = launching.job_comment(name)
    jobs = (job for job in Slurm().squeue() if job.comment == comment or claimed(job.comment, name))
    return not all(map(has_ended, jobs))


def _job_has_ended(name: str, number: int) -> bool:
    """Whether Slurm shows that this job has ended, and that it was the cluster's own.

    That Slurm does not know it proves nothing: homes are shared by sites with several Slurms.
    """
    comment = launching.job_comment(name)
    if found := [job for job in Slurm().squeue(number) if job.comment == comment]:
        return all(map(has_ended, found))
    accounted = [
        job
        for job in Slurm().sacct(number)
        if job.comment == comment or f"--comment={comment}" in job.submit_line.split()
    ]
    return bool(accounted) and all(job.state.has_ended for job in accounted)


def _is_quiet(directory: Directory) -> bool:
    """Whether nothing in the directory has changed for a while."""
    path = directory.path
    files = [path / OWNER, path / "job.json", *(path / "nodes").glob("*.json"), *(path / "logs").rglob("*.log")]
    newest = max(file.stat().st_mtime for file in (path, *files) if file.exists())
    return _now(path.parent) - newest > QUIET_LIMIT


def _now(directory: Path) -> float:
    """The time by the clock of a directory's file system, which need not be ours."""
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(b"\0")
        file.flush()
        return os.fstat(file.fileno()).st_mtime


def _remove(directory: Directory, owner: ClusterJobRecord) -> bool:
    """Remove a dead cluster's directory, volumes and context. Whether all of it is gone.

    It is renamed first and looked at again: another command may have made a cluster of the same name meanwhile.
    """
    path = directory.path
    moved = path.with_name(f"{REMOVED}{path.name}-{secrets.token_hex(4)}")
    path.rename(moved)
    if Directory(moved).owner != owner or remove_volumes(path):
        moved.rename(path)
        return False
    remove_tree(moved)
    if has_context(directory.name):
        unmerge(directory.name)
    return True


def _finish_removals() -> None:
    """Remove what a command was removing when it was killed itself."""
    root = clusters_root()
    for path in root.glob(f"{REMOVED}*"):
        if path.is_dir() and not path.is_symlink() and _now(root) - path.lstat().st_ctime > QUIET_LIMIT:
            remove_tree(path)
