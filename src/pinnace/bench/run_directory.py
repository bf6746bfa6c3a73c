"""The directory of a run: what was asked for, on which machine, and every sample, written the moment it is there.

run.json         the settings, the machine, the versions
samples.jsonl    a line for each task of each model in each round
outputs/         what the programs printed
growth.json      what `pinnace bench growth` has measured, if it was given this directory, before the run or after it
results.json, results.csv, report.html, plots/      made from these, any number of times
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.bench.measurements import FULL, Model, Parameters
from pinnace.errors import BenchError
from pinnace.spec.files import read_json, write_json

if TYPE_CHECKING:
    from pinnace.slurm.options import SbatchOptions

FORMAT = 1
ABOUT, OUTPUTS, GROWTH = "run.json", "outputs", "growth.json"
REPORT, PLOTS = "report.html", "plots"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What was asked for. ``directory`` is where tools and files of the run are, on the shared file system."""

    options: SbatchOptions = field(default_factory=dict)
    nodes: int = 2
    repeat: int = 10
    models: tuple[Model, ...] = tuple(Model)
    only: tuple[str, ...] = ()
    parameters: Parameters = FULL
    image: str = ""
    startup_image: str = ""
    directory: str = ""
    identifier: str = ""  # of the run, in names of files and clusters

    @property
    def removable_directory(self) -> Path:
        """``directory``, which the run removes in the end. BenchError if it is none that a run makes for itself."""
        path = Path(self.directory)
        if not self.identifier or path.name != directory_name(self.identifier):
            raise BenchError(
                f"{self.directory or 'no directory'} in {ABOUT} is not of a run, and would be removed after it",
                hint="Begin a new run, without --resume.",
            )
        return path

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Settings:
        parameters = Parameters(**data.pop("parameters"))
        models = tuple(Model(name) for name in data.pop("models"))
        only = tuple(data.pop("only"))
        return Settings(parameters=parameters, models=models, only=only, **data)


def directory_name(identifier: str) -> str:
    """The directory of a run on the shared file system, by which it is known as ours."""
    return f"pinnace-bench-{identifier}"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One task of one model in one round: the values of its figures, or why there are none."""

    round: int
    model: Model
    task: str
    values: dict[str, float] = field(default_factory=dict)
    error: str = ""
    begin: float = 0.0  # seconds since 1970
    seconds: float = 0.0

    @staticmethod
    def from_json(data: dict[str, Any]) -> Sample:
        return Sample(**data | {"model": Model(data["model"])})


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made: list[Path] = []  # directories that are new, outer ones first

    @staticmethod
    def create(path: Path, settings: Settings) -> RunDirectory:
        """A new one, or one in a directory that is empty or has only ``growth.json``. BenchError otherwise."""
        run = RunDirectory(path)
        try:
            check_unused(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            for directory in (path / OUTPUTS,) if path.is_dir() else (path, path / OUTPUTS):
                directory.mkdir()
                run._made.append(directory)
            run.write({"settings": settings.to_json(), "machine": {}, "versions": {}})
        except OSError as error:
            run.discard()
            raise BenchError(f"{path} cannot be made: {error.strerror}", hint="Choose another --output.") from error
        return run

    def discard(self) -> None:
        """Remove what ``create`` has made, and nothing else: a directory with anything else in it stays."""
        with contextlib.suppress(OSError):
            if self._made:
                (self.path / ABOUT).unlink()
        for directory in reversed(self._made):
            with contextlib.suppress(OSError):
                directory.rmdir()

    @staticmethod
    def existing(path: Path) -> RunDirectory:
        run = RunDirectory(path)
        about = read_json(path / ABOUT) if path.is_dir() else None
        if about is None:
            raise BenchError(f"{path} is no directory of a run of `pinnace bench`: there is no {ABOUT} in it")
        if about.get("format") != FORMAT:
            raise BenchError(
                f"{path} was written by another version of pinnace", hint=f"This one reads format {FORMAT}."
            )
        return run

    def about(self) -> dict[str, Any]:
        return dict(read_json(self.path / ABOUT))

    def write(self, about: dict[str, Any]) -> None:
        write_json(self.path / ABOUT, {"format": FORMAT} | about)

    def update(self, **about: Any) -> None:
        self.write(self.about() | about)

    @property
    def settings(self) -> Settings:
        return Settings.from_json(self.about()["settings"])

    @property
    def machine(self) -> dict[str, Any]:
        return dict(self.about()["machine"])

    def samples(self) -> list[Sample]:
        """All that were taken, in their order. A line that was cut off by a crash does not count."""
        try:
            lines = (self.path / "samples.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            try:
                found.append(Sample.from_json(json.loads(line)))
            except (ValueError, TypeError, KeyError):
                continue
        return found

    def add(self, sample: Sample, output: str = "") -> None:
        with (self.path / "samples.jsonl").open("a") as file:
            file.write(json.dumps(asdict(sample)) + "\n")
        if output:
            (self.path / OUTPUTS / f"{sample.round:03}-{sample.model}-{sample.task}.txt").write_text(output)


def check_unused(path: Path) -> None:
    """BenchError unless a run can have this directory for itself: it is not there, or it is empty.

    What `pinnace bench growth` has written may be in it.
    """
    if path.is_dir() and (path / ABOUT).exists():
        raise BenchError(f"{path} exists already", hint=f"Choose another --output, or go on with it: --resume {path}.")
    of_growth = {GROWTH, REPORT, PLOTS} if (path / GROWTH).exists() else set()
    if path.is_dir() and {entry.name for entry in path.iterdir()} - of_growth:
        raise BenchError(f"{path} is not empty", hint="A run has a directory of its own: choose another --output.")
    if os.path.lexists(path) and not path.is_dir():
        raise BenchError(f"{path} is no directory", hint="Choose another --output.")
