"""What the controller can do about a pod, a job or a node: the plan of ``podjobs.reconciler``, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pinnace.slurm.states import JobState

    Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Submit:
    """Submit the job that becomes the pod's node."""

    pod: Object


@dataclass(frozen=True, kw_only=True)
class Cancel:
    """End jobs; by killing them where Slurm shall not call them cancelled, which is what users do.

    Jobs that are to be ended because they wait for nothing are left alone if they have begun in the meantime: what
    runs may have found another pod.
    """

    jobs: tuple[int, ...]
    why: str
    kill: bool = False
    only_pending: bool = False


@dataclass(frozen=True, kw_only=True)
class Tell:
    """Let a pod's condition say why it waits."""

    pod: Object
    text: str


@dataclass(frozen=True, kw_only=True)
class Number:
    """Note the number of a job that we did not see submitted."""

    pod: Object
    job: int


@dataclass(frozen=True, kw_only=True)
class Fail:
    """Say that a pod has failed, because its job has ended."""

    pod: Object
    job: int
    state: JobState | None


@dataclass(frozen=True, kw_only=True)
class Explain:
    """Say why Slurm had a pod ended that its kubelet has reported as failed already."""

    pod: Object
    job: int
    state: JobState | None


@dataclass(frozen=True, kw_only=True)
class Remove:
    """Delete a pod that waits for a kubelet that is gone."""

    pod: Object


@dataclass(frozen=True, kw_only=True)
class AskAccounting:
    """How jobs ended that squeue has forgotten."""

    jobs: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Retire:
    """Say that a node has ended; its pods' logs are in the archive."""

    node: str


@dataclass(frozen=True, kw_only=True)
class Forget:
    """Delete all that is left of a node."""

    node: str


@dataclass(frozen=True, kw_only=True)
class FreeIndex:
    """Let another node have the index, and with it the addresses, of one that has ended."""

    index: int
    node: str


Action = (
    Submit | Cancel | Tell | Number | Fail | Explain | Remove | AskAccounting | Retire | Forget | FreeIndex
)  # fmt: skip
