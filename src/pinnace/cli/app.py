"""The ``pinnace`` command: its groups, and how it ends."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import NoReturn

import click

from pinnace import __version__
from pinnace.cli.interruption import terminate_on_signals
from pinnace.cli.output import OutputFormat, fail, output_option, show
from pinnace.cluster import configuration
from pinnace.components.manifest import required
from pinnace.errors import PinnaceError

# The commands, and the modules that they are in.
MODULES = {
    "fetch": "fetch",
    "image": "images",
    "bridge": "bridge",
    "pod": "pod",
    "up": "up",
    "down": "up",
    "run": "run",
    "run-workload": "run",
    "kubeconfig": "access",
    "kubectl": "access",
    "shell": "access",
    "port-forward": "access",
    "url": "access",
    "list": "showing",
    "status": "showing",
    "logs": "showing",
    "timeline": "timeline",
    "doctor": "doctor",
    "config": "config",
    "bench": "bench",
    "completion": "completion",
}
WITHOUT_SETTINGS = {"down", "list", "status", "logs", "kubectl", "shell", "version"}


class LazyGroup(click.Group):
    """Imports the module of a command when that is used: together they take a tenth of a second."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *MODULES])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in MODULES:
            return super().get_command(ctx, cmd_name)
        found = vars(import_module(f"pinnace.cli.{MODULES[cmd_name]}")).values()
        return next(value for value in found if isinstance(value, click.Command) and value.name == cmd_name)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show a traceback when something fails.")
@click.version_option(__version__, prog_name="pinnace")
def pinnace(*, debug: bool) -> None:
    """Kubernetes, complete and unmodified, aboard Slurm.

    Start with `pinnace fetch`, which gets the upstream components once.
    """
    del debug  # looked at by main()


@pinnace.command()
@output_option
def version(output: OutputFormat) -> None:
    """Show the version of pinnace and of every upstream component of a cluster."""
    rows = [{"name": "pinnace", "version": __version__}]
    rows += [{"name": component.name, "version": component.version} for component in required()]
    show(rows, output, columns=("name", "version"))


def _apply_settings() -> list[configuration.Effective]:
    """The settings of the site's and the user's files. A wrong file keeps nobody from ending or seeing a cluster."""
    try:
        return configuration.apply(os.environ)
    except PinnaceError as error:
        if next((word for word in sys.argv[1:] if not word.startswith("-")), "") not in WITHOUT_SETTINGS:
            raise
        fail(error.message, hint=error.hint)
        configuration.apply_home(os.environ)
        return []


def main() -> NoReturn:
    """Run the command. Every failure that we know is one message; the others are bugs, and show themselves."""
    terminate_on_signals()
    debug = "--debug" in sys.argv
    try:
        settings = _apply_settings()
        pinnace(prog_name="pinnace", standalone_mode=False, obj=settings)
    except click.ClickException as error:
        if debug:
            raise
        error.show()
        sys.exit(error.exit_code)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        fail("interrupted")
        sys.exit(128 + signal.SIGINT)
    except PinnaceError as error:
        if debug:
            raise
        fail(error.message, hint=error.hint)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read us has gone; Python would complain when it flushes
        sys.exit(1)
    sys.exit(0)
