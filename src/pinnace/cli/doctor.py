"""``pinnace doctor``: what is well, what is not, and what to do about it."""

from __future__ import annotations

import datetime as dt
import os
import sys
from typing import TYPE_CHECKING

import click

from pinnace.cli.durations import Duration
from pinnace.cli.output import OutputFormat, Steps, output_option, painted, show
from pinnace.cli.slurm_options import given_argv, given_options, slurm_options
from pinnace.cluster.doctor import examine, examine_partition
from pinnace.cluster.site_page import page
from pinnace.errors import UsageError
from pinnace.node.checks import CheckState

if TYPE_CHECKING:
    from pinnace.slurm.options import SbatchOptions

MARKS = {CheckState.OK: ("✓", "green"), CheckState.WARNING: ("!", "yellow"), CheckState.FAILED: ("✗", "red")}


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
@click.option(
    "--all",
    "all_kinds",
    is_flag=True,
    help="With --partition: ask a node of each kind, and print the page to hand to your administrators (Markdown).",
)
@output_option
@click.pass_context
def doctor(context: click.Context, *, on_node: bool, wait_limit: float, all_kinds: bool, output: OutputFormat) -> None:
    """Check what clusters need: of this machine, or of compute nodes.

    ✓ is well, ! works with a restriction, ✗ has to be mended; the exit code is 1 if there is any of the last.
    """
    options = given_argv(context)
    if all_kinds:
        sys.exit(print_page(given_options(context), wait_limit))
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
    sys.exit(1 if any(row["state"] == CheckState.FAILED for row in rows) else 0)


def print_page(options: SbatchOptions, limit: float) -> int:
    """Print the page for administrators. The exit code: 1 if some kind of nodes cannot run clusters."""
    partition = options.get("partition")
    if not partition or set(options) != {"partition"}:
        raise UsageError(
            "--all asks nodes of one partition", hint="Say which, and nothing else: --partition NAME --all."
        )
    with Steps().step("asked a node of each kind") as step:
        classes = list(examine_partition(partition, limit=limit, report=step.say))
    click.echo(page(partition, classes, host=os.uname().nodename, now=dt.datetime.now(dt.UTC)), nl=False)
    return 0 if all(found.works for found in classes) else 1
