"""``pinnace fetch``: get the upstream components."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pinnace.cli.output import OutputFormat, Progress, output_option, show
from pinnace.cluster.directory import ensure_seed, verified_binaries
from pinnace.components.bundle import write_bundle
from pinnace.components.fetch import fetch as fetch_components
from pinnace.components.manifest import Component, architecture, select
from pinnace.components.store import ComponentStore, ComponentStores, Origin, sha256_of, site_root, user_root
from pinnace.errors import ComponentError, UsageError


@click.command()
@click.argument("names", nargs=-1, metavar="[COMPONENT]...")
@click.option(
    "--from",
    "wanted",
    metavar="release|build|FILE",
    help="Where to get them: upstream's official releases, a build from the Go module proxy, or a bundle. "
    "By default the release if it can be reached, otherwise a build.",
)
@click.option("--sha256", default="", metavar="DIGEST", help="Of the bundle: take it on the word of who gave you this.")
@click.option("--site", is_flag=True, help="Install for all users of this installation, beside pinnace itself.")
@click.option("--bundle", metavar="FILE", type=click.Path(path_type=Path), help="Also write all to one archive.")
@click.option("--verify", is_flag=True, help="Read and check every byte of what is already there.")
@click.option("--list", "only_list", is_flag=True, help="Only show what there is.")
@output_option
def fetch(
    *,
    names: tuple[str, ...],
    wanted: str | None,
    sha256: str,
    site: bool,
    bundle: Path | None,
    verify: bool,
    only_list: bool,
    output: OutputFormat,
) -> None:
    """Get the upstream components (all that a cluster needs, or those named) and keep them in the store.

    The store is in $PINNACE_HOME, by default in the XDG data directory. What is there already is left alone, and
    mended if it is damaged.
    """
    components = select(names)
    arch = architecture()
    stores = ComponentStores.default(arch)
    if only_list:
        if wanted or bundle or site:
            raise UsageError("--list only shows; it goes with no other option than --verify and -o")
        show(_rows(stores, components, deep=verify), output, columns=("name", "version", "arch", "state", "origin"))
        return
    if sha256 and wanted in {None, Origin.RELEASE, Origin.BUILD}:
        raise UsageError("--sha256 is that of a bundle", hint="Name the bundle with --from FILE.")
    progress = Progress()
    target = ComponentStore(site_root() if site else user_root(), arch)
    try:
        entries = fetch_components(
            components,
            stores=ComponentStores(target) if site else stores,
            target=target,
            wanted=wanted,
            reporter=progress,
            deep=verify,
            sha256=sha256,
        )
        if not names:
            _prepare_seed(target.root, progress)
        if bundle:
            write_bundle(entries, bundle.absolute(), lambda label: progress.step(label, f"writing to {bundle}"))
            progress.done("bundle", f"{bundle} (sha256 {sha256_of(bundle)})")
    finally:
        progress.clear()
    progress.done("fetch", f"{len(entries)} components are ready in {target.root}")


def _prepare_seed(root: Path, progress: Progress) -> None:
    """Save every later cluster some seconds. One that starts without a seed is none the worse."""
    try:
        if ensure_seed(root, verified_binaries()):
            progress.done("seed", "the first state of a cluster is prepared")
    except (OSError, ComponentError) as error:
        progress.note("seed", f"the first state of a cluster could not be prepared, so clusters start later: {error}")


def _rows(stores: ComponentStores, components: list[Component], *, deep: bool) -> list[dict[str, Any]]:
    rows = []
    for entry in (stores.inspect(component, deep=deep) for component in components):
        files = entry.record.files if entry.record else {}
        rows.append(
            {
                "name": entry.component.name,
                "version": entry.component.version,
                "arch": stores.stores[0].arch,
                "state": entry.state.value,
                "reason": entry.reason,
                "origin": entry.record.origin.value if entry.record else "-",
                "detail": entry.record.detail if entry.record else "",
                "path": str(entry.path),
                "binaries": [
                    {"name": binary, "sha256": files[binary].sha256, "size": files[binary].size}
                    if binary in files
                    else {"name": binary}
                    for binary in entry.component.binaries
                ],
            }
        )
    return rows
