"""``testbed image``: what there is, and making it."""

from __future__ import annotations

import json
import time
from enum import StrEnum
from pathlib import Path
from typing import Any

import click

from testbed.images.build import build_images, state
from testbed.images.cache import Cache, copy_to
from testbed.images.recipes import RECIPES


class State(StrEnum):
    """Whether an image can be used at once."""

    BUILT = "built"
    MISSING = "missing"


@click.group()
def image() -> None:
    """Container images for the tests, made from Debian packages without a registry."""


@image.command("list")
@click.option("-o", "--output", "form", type=click.Choice(["table", "json", "name"]), default="table")
def list_images(form: str) -> None:
    """List the images, and whether they are built."""
    rows = [describe(name, cache=Cache.default()) for name in RECIPES]
    if form == "json":
        click.echo(json.dumps(rows, indent=2))
    elif form == "name":
        click.echo("\n".join(RECIPES))
    else:
        click.echo(f"{'NAME':10} {'STATE':8} {'MiB':>6}  {'DIGEST':19}  REFERENCE")
        for row in rows:
            size = f"{row['size'] / 2**20:.1f}" if row["size"] else "-"
            digest = (row["digest"] or "-")[:19]
            click.echo(f"{row['name']:10} {row['state']:8} {size:>6}  {digest:19}  {row['reference']}")


@image.command("build")
@click.argument("names", nargs=-1, metavar="NAME...")
@click.option("--all", "everything", is_flag=True, help="Build every image.")
@click.option(
    "--output",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Copy each image to DIR/NAME.tar.",
    metavar="DIR",
)
@click.option("--refresh", is_flag=True, help="Renew the package lists, and rebuild what they change.")
def build(names: tuple[str, ...], *, everything: bool, directory: Path | None, refresh: bool) -> None:
    """Build images, and print the paths of their layout tars, which `ctr images import` takes."""
    if everything == bool(names):
        raise click.UsageError("Give the names of images, or --all.")
    chosen = tuple(RECIPES) if everything else tuple(dict.fromkeys(names))
    start = time.monotonic()
    for name, built in zip(chosen, build_images(chosen, refresh=refresh), strict=True):
        path = copy_to(built, directory, name=name) if directory else built.path
        seconds = time.monotonic() - start
        click.echo(f"✓ {RECIPES[name].reference} {built.size / 2**20:.1f} MiB in {seconds:.1f} s", err=True)
        click.echo(path)
        start = time.monotonic()


def describe(name: str, *, cache: Cache) -> dict[str, Any]:
    """Return an image as ``-o json`` shows it."""
    recipe = RECIPES[name]
    built = state(recipe, cache=cache)
    return {
        "name": name,
        "reference": recipe.reference,
        "state": State.BUILT if built else State.MISSING,
        "digest": built.digest if built else None,
        "size": built.size if built else None,
        "path": str(built.path) if built else None,
    }
