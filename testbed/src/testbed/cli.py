"""The command ``testbed``: a thin layer over ``Bed``. Only this module prints and exits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from testbed import software
from testbed.bed import Bed
from testbed.errors import BedError
from testbed.generations import DEFAULT, GENERATIONS
from testbed.images.cli import image
from testbed.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.status import HostStatus

__all__ = ["main"]


@contextmanager
def progress(what: str) -> Iterator[None]:
    """A line per step, on stderr."""
    begin = time.monotonic()
    try:
        yield
    except BaseException:
        click.echo(f"✗ {what}", err=True)
        raise
    click.echo(f"✓ {what} ({time.monotonic() - begin:.1f} s)", err=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show a traceback when something fails.")
def cli(*, debug: bool) -> None:
    """A real multi-host Slurm on one machine."""
    del debug  # read by main(), where errors are shown


@cli.command()
@click.option("--hosts", default=4, show_default=True, help="How many compute hosts: n1, n2, …")
@click.option("--link-rate", default="", help="Of every link, in each direction: 10gbit. As fast as it goes without.")
@click.option("--link-delay", default="", help="Of every link, in each direction: 50us. Two hosts are two links apart.")
@click.option("--fast", is_flag=True, help="Have Slurm schedule at once, rather than with a site's usual pauses.")
@click.option("--no-cgroups", is_flag=True, help="Have Slurm track jobs without cgroups, and hide no devices.")
@click.option("--own-processors", is_flag=True, help="Give each compute host one processor of this machine, in turn.")
@click.option("--firewall", is_flag=True, help="Let hosts reach each other on Slurm's ports and one range alone.")
@click.option(
    "--two-nets", is_flag=True, help="Give hosts a fast network too (eth1); their names lead to the slow one."
)
@click.option(
    "--slurm",
    type=click.Choice([known.slurm for known in GENERATIONS]),
    default=DEFAULT,
    show_default=True,
    help="The version, with the release of Debian that has it as the root of every host.",
)
@click.option("--no-accounting", is_flag=True, help="No slurmdbd: sacct knows nothing.")
@click.option("--private-tmp", is_flag=True, help="Give every job a /tmp of its own (job_container/tmpfs).")
@click.option("--noexec-tmp", is_flag=True, help="Mount /tmp of all hosts noexec.")
@click.option("--no-nft", is_flag=True, help="Have nft in /usr/local/sbin alone, and no ip.")
@click.option(
    "--stale-home", is_flag=True, help="Have hosts cache names and attributes of homes, up to a minute; no file locks."
)
@click.option("--job-submit", is_flag=True, help="A plugin demands an account, and changes partitions and limits.")
@click.option("--maintenance", default=0, help="Reserve all hosts for the administrators in so many minutes.")
@click.option("--memlock", default="", help="The limit of locked memory of all processes, such as 64K.")
@click.option("--nofile", default=0, help="The limit of open files of all processes, such as 1024.")
def up(
    *,
    hosts: int,
    link_rate: str,
    link_delay: str,
    fast: bool,
    no_cgroups: bool,
    own_processors: bool,
    firewall: bool,
    two_nets: bool,
    slurm: str,
    no_accounting: bool,
    private_tmp: bool,
    noexec_tmp: bool,
    no_nft: bool,
    stale_home: bool,
    job_submit: bool,
    maintenance: int,
    memlock: str,
    nofile: int,
) -> None:
    """Start a bed: login, n1 to nN, and a host outside."""
    begin = time.monotonic()
    plan = Plan(
        hosts=hosts,
        link_rate=link_rate,
        link_delay=link_delay,
        fast=fast,
        cgroups=not no_cgroups,
        own_processors=own_processors,
        firewall=firewall,
        two_nets=two_nets,
        slurm=slurm,
        accounting=not no_accounting,
        private_tmp=private_tmp,
        noexec_tmp=noexec_tmp,
        no_nft=no_nft,
        stale_home=stale_home,
        job_submit=job_submit,
        maintenance=maintenance,
        memlock=memlock,
        nofile=nofile,
    )
    Bed.up(plan, report=progress)
    click.echo(f"The bed is up after {time.monotonic() - begin:.1f} s. Next: testbed run -- sinfo", err=True)


@cli.command()
def down() -> None:
    """Remove the bed, with all that is in it."""
    with progress("down"):
        found = Bed(report=progress).down()
    if not found:
        click.echo("There was no bed.", err=True)


@cli.command()
def clean() -> None:
    """Remove what a crash has left, also when the state file is lost."""
    with progress("clean"):
        Bed(report=progress).down()


@cli.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--user", default="alice", show_default=True)
@click.option("--on", default="login", show_default=True, help="The host.")
@click.option("--cwd", default="", help="The directory to start in; the user's home without.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(*, user: str, on: str, cwd: str, command: tuple[str, ...]) -> NoReturn:
    """Run a command on a host. Exit code, streams, signals and the terminal pass through."""
    argv = Bed.current().command(command, user=user, on=on, cwd=cwd)
    os.execv(argv[0], argv)  # noqa: S606 - no shell wanted


@cli.command()
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def status(*, output: str) -> None:
    """Show the hosts, their daemons and what Slurm says about them."""
    hosts = Bed.current().status()
    if output == "json":
        click.echo(json.dumps({"hosts": [host.as_json() for host in hosts]}, indent=2))
    else:
        click.echo(table(hosts))


def table(hosts: tuple[HostStatus, ...]) -> str:
    rows = [("HOST", "ADDRESS", "STATE", "NODE", "DAEMONS")]
    for host in hosts:
        daemons = " ".join(f"{daemon.name}:{daemon.pid or daemon.state}" for daemon in host.daemons)
        rows.append((host.name, host.address, host.state, host.node or "-", daemons or "-"))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


@cli.command()
@click.argument("host")
def kill_host(*, host: str) -> None:
    """Cut the power of a host: all its processes are gone at once, and so is its network."""
    with progress(f"kill-host {host}"):
        Bed.current(report=progress).kill_host(host)


@cli.command()
@click.argument("host")
def start_host(*, host: str) -> None:
    """Bring a host back."""
    with progress(f"start-host {host}"):
        Bed.current(report=progress).start_host(host)


@cli.command()
@click.argument("host")
def cut_link(*, host: str) -> None:
    """Pull the cable of a host."""
    with progress(f"cut-link {host}"):
        Bed.current(report=progress).cut_link(host)


@cli.command()
@click.argument("host")
def join_link(*, host: str) -> None:
    """Plug the cable of a host in again."""
    with progress(f"join-link {host}"):
        Bed.current(report=progress).join_link(host)


@cli.command()
@click.argument("host")
def freeze(*, host: str) -> None:
    """Stop all processes of a host where they are."""
    with progress(f"freeze {host}"):
        Bed.current(report=progress).freeze(host)


@cli.command()
@click.argument("host")
def thaw(*, host: str) -> None:
    """Let the processes of a frozen host go on."""
    with progress(f"thaw {host}"):
        Bed.current(report=progress).thaw(host)


@cli.command()
@click.argument("daemon")
def restart(*, daemon: str) -> None:
    """Restart slurmctld, slurmdbd, slurmrestd, slurmd:HOST, munged:HOST or mariadbd."""
    with progress(f"restart {daemon}"):
        Bed.current(report=progress).restart(daemon)


@cli.command()
@click.argument("project", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--share",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A directory that becomes share/pinnace of the installation, such as a store of components.",
)
def install(*, project: Path, share: Path | None) -> None:
    """Install a Python project for all users of the bed, in /opt/pinnace."""
    with progress(f"install {project}"):
        software.install(Bed.current(report=progress), project.absolute(), share=share)


cli.add_command(image)


def main() -> NoReturn:
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BedError as error:
        show(error.message, error.hint)
        sys.exit(error.exit_code)
    except (OSError, subprocess.SubprocessError) as error:  # a full disk, a tool of the machine that fails or hangs
        show(str(error), "testbed --debug … shows where.")
        sys.exit(1)
    sys.exit(0)


def show(message: str, hint: str) -> None:
    if "--debug" in sys.argv[1:2]:
        traceback.print_exc()
    click.echo(f"testbed: {message}", err=True)
    if hint:
        click.echo(f"Hint: {hint}", err=True)
