"""Where the growth of a cluster is kept: ``growth.json``, in a directory of its own or in that of a run.

The file is replaced as a whole with every size that was measured. Until the first one, that of an earlier time stays.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pinnace.bench.growth.results import as_json, sizes_from
from pinnace.bench.run_directory import ABOUT, GROWTH, RunDirectory, check_unused
from pinnace.errors import BenchError
from pinnace.spec.files import read_json, write_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pinnace.bench.growth.results import Size

__all__ = ["Growth", "GrowthDirectory", "read_growth"]

FORMAT = 1
PART = "simulated"


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The sizes of one cluster, and under which conditions they were measured."""

    conditions: Mapping[str, Any] = field(default_factory=dict)
    sizes: tuple[Size, ...] = ()


def read_growth(directory: Path) -> Growth | None:
    """What is kept in a directory; None if there is nothing. BenchError if it cannot be read."""
    path = directory / GROWTH
    if not path.exists():
        return None
    try:
        document = read_json(path)
        known = document["format"] == FORMAT
        sizes = tuple(sizes_from(document, PART)) if known else ()
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BenchError(f"{path} cannot be read: {error!r}", hint="Measure the growth again.") from error
    if not known:
        raise BenchError(f"{path} was written by another version of pinnace", hint="Measure the growth again.")
    conditions = {name: value for name, value in document.items() if name not in {"format", "parts", "objectives"}}
    return Growth(conditions=conditions, sizes=sizes)


class GrowthDirectory:
    """A directory that a measurement of growth writes to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made = False

    @staticmethod
    def create(path: Path) -> GrowthDirectory:
        """A new one, an empty one, that of a run, or one that has been used for this before. BenchError for others."""
        found = GrowthDirectory(path)
        if found.is_run:
            RunDirectory.existing(path)
            return found
        check_unused(path)
        try:
            if not path.is_dir():
                path.mkdir(parents=True)
                found._made = True
        except OSError as error:
            raise BenchError(f"{path} cannot be made: {error.strerror}", hint="Choose another --output.") from error
        return found

    def discard(self) -> None:
        """Remove the directory if ``create`` has made it, and nothing is in it."""
        if self._made:
            with contextlib.suppress(OSError):
                self.path.rmdir()

    @property
    def is_run(self) -> bool:
        """Whether this is the directory of a run of `pinnace bench`."""
        return (self.path / ABOUT).exists()

    def write(self, growth: Growth) -> None:
        try:
            write_json(self.path / GROWTH, {"format": FORMAT, **as_json({PART: growth.sizes}, **growth.conditions)})
        except OSError as error:
            raise BenchError(f"{self.path / GROWTH} cannot be written: {error.strerror}") from error
