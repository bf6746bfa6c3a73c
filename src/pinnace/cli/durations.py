"""Durations on the command line."""

from __future__ import annotations

import click

from pinnace.cluster.until import parse_duration


class Duration(click.ParamType[float]):
    """Seconds, written as 90s, 30m, 1h30m or 2d."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


wait_limit_option = click.option(
    "--wait-limit",
    type=Duration(),
    metavar="DURATION",
    help="Give up if the cluster is not ready by then; a job may wait for its turn for days. Without, no limit.",
)
