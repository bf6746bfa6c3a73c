"""``pinnace config``: the settings as they hold, and where each comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pinnace.cli.output import OutputFormat, output_option, show

if TYPE_CHECKING:
    from pinnace.cluster.configuration import Effective


@click.command()
@output_option
@click.pass_obj
def config(found: list[Effective], output: OutputFormat) -> None:
    """Show the settings as they hold, and where each comes from.

    Options of a command go before the environment, and that before the files: your own, /etc/pinnace.toml, and the one
    beside the installation.
    """
    rows = [{"key": one.setting.key, "value": one.value or "-", "from": one.source or "-"} for one in found]
    show(rows, output, columns=("key", "value", "from"))
