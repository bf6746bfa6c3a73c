"""The options by which a cluster gets Slurm jobs for its pods."""

from __future__ import annotations

from typing import TypeVar

import click

from pinnace.cli.slurm_options import given_options
from pinnace.cluster.configuration import pod_settings
from pinnace.cluster.directory import home
from pinnace.errors import UsageError
from pinnace.slurm.allowed_options import OF_PODS_TOO
from pinnace.slurm.options import argv
from pinnace.spec import Provisioning

Command = TypeVar("Command")


class Bounds(click.ParamType[tuple[int, int]]):
    """MIN:MAX."""

    name = "MIN:MAX"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        least, colon, most = str(value).partition(":")
        if not (colon and least.isdigit() and most.isdigit() and int(least) <= int(most)):
            self.fail(f"{value!r} is not MIN:MAX, such as 0:8", param, ctx)
        return int(least), int(most)


def provisioning_options(command: Command) -> Command:
    as_jobs = click.option(
        "--pods-as-jobs", is_flag=True, help="Every pod is a Slurm job of its own, unless it says otherwise."
    )
    elastic = click.option(
        "--elastic",
        type=Bounds(),
        default=None,
        metavar="MIN:MAX",
        help="So many more Slurm jobs join as nodes when pods wait, and leave when idle. 0:0: only pods that ask "
        "for it are jobs.",
    )
    return as_jobs(elastic(command))  # type: ignore[type-var]


def provisioning(context: click.Context, *, pods_as_jobs: bool, elastic: tuple[int, int] | None) -> Provisioning | None:
    """What was asked for; None if nothing was."""
    if not pods_as_jobs and elastic is None:
        return None
    if context.params.get("local"):
        raise UsageError("--local has no Slurm to run pods in", hint="Leave out --pods-as-jobs and --elastic.")
    options = argv({name: value for name, value in given_options(context).items() if name in OF_PODS_TOO})
    settings = pod_settings(home())
    return Provisioning(
        pods_as_jobs=pods_as_jobs, elastic=elastic or (0, 0), options=tuple(options), settings=settings.to_json()
    )
