"""``pinnace image``: the user's images, which all clusters of the user can run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from pinnace.cli.output import OutputFormat, Steps, output_option, show
from pinnace.cluster.directory import Directory, image_store, load_image, load_images_from
from pinnace.errors import ImageError, UsageError
from pinnace.images import cache, credentials
from pinnace.images.push import push as push_image
from pinnace.images.reference import parse
from pinnace.images.remote import Remote
from pinnace.sandbox.namespaces import as_root

DASH = Path("-")


@click.group()
def image() -> None:
    """Your images: loaded once, for all nodes of all your clusters, those that run and those to come."""


@image.command()
@click.argument("paths", nargs=-1, required=True, metavar="FILE|DIR...", type=click.Path(path_type=Path))
@click.option("--as", "new_name", metavar="NAME", help="Call the image so; for archives without a name of their own.")
@click.option("--name", help="Only if this cluster exists. All your clusters see the image in any case.")
def load(*, paths: tuple[Path, ...], new_name: str | None, name: str | None) -> None:
    """Load images: OCI layouts (tar or directory), or what `docker save` writes. A dash is standard input."""
    if name:
        Directory.existing(name)
    if new_name and len(paths) > 1:
        raise UsageError("--as names one image: give one file")
    for path in paths:
        if path != DASH and not path.exists():
            raise UsageError(f"there is no file {path}")
    if DASH in paths and sys.stdin.isatty():
        raise UsageError(
            "an image is to come from standard input", hint="As in: podman save NAME | pinnace image load -"
        )
    steps = Steps()
    for path in paths:
        with steps.step(f"loaded {path}") as step:
            loaded = load_images_from(sys.stdin.buffer, new_name) if path == DASH else load_image(path, new_name)
            step.text = f"loaded {', '.join(str(stored.name) for stored in loaded)}"


@image.command(name="list")
@output_option
def list_images(output: OutputFormat) -> None:
    """Show the images that were loaded."""
    rows = [
        {"name": str(stored.name), "digest": stored.digest, "size": stored.size, "mib": f"{stored.size / 2**20:.1f}"}
        for stored in image_store().list()
    ]
    show(rows, output, columns=("name", "digest", "mib"))


@image.command()
@click.argument("name")
@click.argument("target", required=False)
@click.option("--plain-http", is_flag=True, help="Without TLS; only to a registry on this machine.")
def push(*, name: str, target: str | None, plain_http: bool) -> None:
    """Send a loaded image to a registry, under its own name or as TARGET.

    Logins are those of `docker login` and `podman login`, or the file that REGISTRY_AUTH_FILE names.
    """
    stored = image_store().find(parse(name))
    there = parse(target or name)
    login = credentials.find(there.registry, there.path, os.environ, Path.home())
    remote = Remote(there.registry, there.path, login, plain=plain_http)
    with Steps().step(f"sent {stored.name} to {there}") as step:
        digest = push_image(image_store(), stored.digest, remote, there.tag, step.say)
    click.echo(f"{there.registry}/{there.path}@{digest}")


@image.command(name="rm")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def remove(names: tuple[str, ...]) -> None:
    """Remove images. Nodes that have got them already keep them until their cluster ends."""
    for name in names:
        image_store().remove(parse(name))


@image.command()
def prune() -> None:
    """Remove the unpacked images that your clusters have left on this host, for the next ones to start faster.

    On compute nodes: srun -w NODE pinnace image prune.
    """
    host = os.uname().nodename
    asked = {name: value for name, value in os.environ.items() if not (name == cache.VARIABLE and value in cache.OFF)}
    pool = cache.place(asked, os.getuid())
    if not pool or not pool.is_dir():
        click.echo(f"There are no unpacked images of yours on {host}.", err=True)
        return
    if not cache.is_ours(pool):
        raise ImageError(f"{pool} on {host} is not yours alone, and is not used", hint="Ask whoever made it.")
    before = cache.size(pool)
    done = as_root(lambda: cache.prune(pool))
    freed = before - (cache.size(pool) if pool.is_dir() else 0)
    click.echo(f"{host}: {freed / 2**20:.1f} MiB removed.", err=True)
    if not done:
        raise ImageError(
            f"some of {pool} on {host} is in use", hint="Run it again when your clusters there have ended."
        )
