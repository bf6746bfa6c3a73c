"""``pinnace doctor``: what is well, what is not, and what to do about it."""

from __future__ import annotations

import sys

import click

from pinnace.cli.durations import Duration
from pinnace.cli.output import OutputFormat, output_option, painted, show
from pinnace.cli.slurm_options import given_argv, slurm_options
from pinnace.cluster.doctor import examine
from pinnace.node.checks import State

MARKS = {State.OK: ("✓", "green"), State.WARNING: ("!", "yellow"), State.FAILED: ("✗", "red")}


@click.command()
@slurm_options
@click.option("--on-node", is_flag=True, help="On compute nodes, in a small job; any option of Slurm's means this too.")
@click.option(
    "--wait-limit",
    type=Duration(),
    default="10m",
    show_default=True,
    metavar="DURATION",
    help="Give up if Slurm has not given nodes by then.",
)
@output_option
@click.pass_context
def doctor(context: click.Context, *, on_node: bool, wait_limit: float, output: OutputFormat) -> None:
    """Check what clusters need: of this machine, or of compute nodes.

    ✓ is well, ! works with a restriction, ✗ has to be mended; the exit code is 1 if there is any of the last.
    """
    options = given_argv(context)
    rows = []
    host = ""
    for finding in examine(options, on_nodes=on_node or bool(options), limit=wait_limit):
        check = finding.check
        rows.append({"host": finding.host, "name": check.name, "state": str(check.state), "text": check.text,
                     "hint": check.hint})  # fmt: skip
        if output is OutputFormat.TABLE:
            if finding.host != host:
                host = finding.host
                click.echo(host)
            click.echo(f"{painted(*MARKS[check.state])} {check.name}: {check.text}")
            if check.hint:
                click.echo(f"  {check.hint}")
    if output is not OutputFormat.TABLE:
        show(rows, output, columns=("host", "name", "state", "text"))
    sys.exit(1 if any(row["state"] == State.FAILED for row in rows) else 0)
