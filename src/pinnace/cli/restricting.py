"""The options by which a cluster is made fit for others than its user."""

from __future__ import annotations

from typing import TypeVar

import click

Command = TypeVar("Command")

# Two flags, because an option that may have a value would take the name of a workload for it.
OPTIONS = (
    click.option(
        "--restricted",
        "restricted",
        flag_value="restricted",
        default=None,
        help="For a cluster into which you let others: pods are held to the level `restricted` of the Pod Security "
        "Standards, and reach nothing of yours.",
    ),
    click.option(
        "--baseline",
        "restricted",
        flag_value="baseline",
        help="The same with the level `baseline`, for images that must run as root.",
    ),
    click.option(
        "--allow-host-path",
        "host_paths",
        multiple=True,
        type=click.Path(),
        metavar="DIR[:rw]",
        help="A directory that pods of such a cluster may claim, by a storage class, and read; with :rw also write "
        "(repeat).",
    ),
)


def restricting_options(command: Command) -> Command:
    for option in reversed(OPTIONS):
        command = option(command)  # type: ignore[type-var]
    return command
