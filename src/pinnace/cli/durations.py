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
