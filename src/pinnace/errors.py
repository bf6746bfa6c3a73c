"""The errors that a user can meet.

    PinnaceError                      anything that is said to the user in one message, with a hint what to do next
    ├── UsageError                    the request itself is wrong: an unknown name, options that exclude each other
    ├── ComponentError                an upstream component cannot be had, or is not what it should be
    │   ├── ChecksumError             the bytes are not the expected ones
    │   ├── DownloadUnreachableError  the place to download from does not answer
    │   └── ToolchainError            something that a build needs is missing on this machine
    ├── SlurmError                    Slurm refused, or does not answer; in its own words
    │   ├── SlurmUnreachableError     Slurm does not answer, or not to us: to be tried again
    │   ├── SlurmNotFoundError        Slurm does not know the job, or the job has ended
    │   └── SlurmSubmitLimitError     the user has as many jobs in Slurm as the site allows
    ├── ApiError                      the Kubernetes API refused a request; in its own words
    ├── ImageError                    an image is damaged, has no name, or is none
    │   └── RegistryError             a registry cannot be reached, or refuses
    ├── ClusterError                  a cluster cannot be started, found or used
    │   ├── CredentialError           a kubeconfig's credential plugin fails: the API cannot be asked for now
    │   └── AddressTakenError         somebody else listens where the tunnel to a cluster should
    ├── NodeError                     this host cannot be a node, or cannot go on as one
    ├── RankError                     ranks of a pod cannot be started, or whoever asks is not known for sure
    ├── LeaseLostError                another process may be the leader from now on
    ├── ForbiddenError                the bridge's administrator has not allowed this
    ├── MissingError                  a ConfigMap or Secret, or a key of it, does not exist (yet)
    ├── StagingError                  a script, an input or a result of a job does not exist, or is not allowed
    ├── S3Error                       S3 has refused a request
    │   └── S3TransientError          S3 does not answer: to be tried again
    ├── UnsafePathError               other users could change what we would rely on
    ├── BenchError                    a benchmark cannot be run, or one measurement of it failed
    └── NoSpaceError                  a file system is full, or too small for what was asked

Only ``pinnace.cli`` prints them; everything below raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "AddressTakenError",
    "ApiError",
    "BenchError",
    "ChecksumError",
    "ClusterError",
    "ComponentError",
    "CredentialError",
    "DownloadUnreachableError",
    "ForbiddenError",
    "ImageError",
    "LeaseLostError",
    "MissingError",
    "NoSpaceError",
    "NodeError",
    "PinnaceError",
    "RankError",
    "RegistryError",
    "S3Error",
    "S3TransientError",
    "SlurmError",
    "SlurmNotFoundError",
    "SlurmSubmitLimitError",
    "SlurmUnreachableError",
    "StagingError",
    "ToolchainError",
    "UnsafePathError",
    "UsageError",
]


class PinnaceError(Exception):
    """What happened and why, and in ``hint`` what the user can do about it."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(PinnaceError):
    """The request itself is wrong."""

    exit_code = 2


class ComponentError(PinnaceError):
    """An upstream component cannot be had, or is not what it should be."""


class ChecksumError(ComponentError):
    """The bytes are not the expected ones."""


class DownloadUnreachableError(ComponentError):
    """The place to download from does not answer."""


class ToolchainError(ComponentError):
    """Something that a build needs is missing on this machine."""


class SlurmError(PinnaceError):
    """Slurm refused, or does not answer; in its own words.

    If a command said so: which, with what exit code, and all that it printed.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        argv: Sequence[str] = (),
        returncode: int | None = None,
        stdout: str = "",
        stderr: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.argv, self.returncode, self.stdout, self.stderr = tuple(argv), returncode, stdout, stderr


class SlurmUnreachableError(SlurmError):
    """Slurm does not answer, or not to us: to be tried again. What was asked for may have been done."""


class SlurmNotFoundError(SlurmError):
    """Slurm does not know the job, or the job has ended."""


class SlurmSubmitLimitError(SlurmError):
    """The user has as many jobs in Slurm as the site allows."""


class ApiError(PinnaceError):
    """The Kubernetes API refused a request: the HTTP status ``code``, and its own words."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class ImageError(PinnaceError):
    """An image is damaged, has no name, or is none."""


class RegistryError(ImageError):
    """A registry cannot be reached, or refuses."""


class ClusterError(PinnaceError):
    """A cluster cannot be started, found or used."""


class CredentialError(ClusterError):
    """A kubeconfig's credential plugin fails: the API cannot be asked for now, as if it did not answer."""


class AddressTakenError(ClusterError):
    """Somebody else listens at the address of this host that a tunnel to a cluster should have."""


class NodeError(PinnaceError):
    """This host cannot be a node, or cannot go on as one."""


class RankError(PinnaceError):
    """Ranks of a pod cannot be started, or it cannot be told for sure who asks for them."""


class LeaseLostError(PinnaceError):
    """Another process may be the leader from now on, so this one must not work."""


class ForbiddenError(PinnaceError):
    """The bridge's administrator has not allowed this."""


class MissingError(PinnaceError):
    """A ConfigMap or Secret, or a key of it, does not exist (yet)."""


class StagingError(PinnaceError):
    """A script, an input or a result does not exist, or is not allowed."""


class S3Error(PinnaceError):
    """S3 has refused a request."""


class S3TransientError(S3Error):
    """S3 does not answer; the request may be tried again."""


class UnsafePathError(PinnaceError):
    """Other users could change what we would rely on."""


class BenchError(PinnaceError):
    """A benchmark cannot be run, or one measurement of it failed."""


class NoSpaceError(PinnaceError):
    """A file system is full, or too small for what was asked."""
