"""From a recipe to an image in the cache."""

from __future__ import annotations

import hashlib
import platform
import tempfile
from functools import partial
from typing import TYPE_CHECKING

from testbed.errors import PackageError
from testbed.images import debs
from testbed.images.cache import Built, Cache
from testbed.images.commands import CommandError
from testbed.images.compiling import compile_program, toolchain
from testbed.images.golang import GoProgram, GoSource, add_from_modules, go_version
from testbed.images.oci import Layer, make_image, write_layer, write_layout
from testbed.images.recipes import RECIPES, find
from testbed.images.rootfs import applet_links, assemble, unpack, write_tar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from testbed.images.recipes import LayerRecipe, Recipe

__all__ = ["build_image", "build_images", "state"]

# To be raised whenever this package makes other bytes from the same recipe and packages.
FORMAT = 1
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def build_image(name: str, *, cache: Cache | None = None, recipes: Mapping[str, Recipe] = RECIPES) -> Path:
    """Return the path of an image's layout tar, built if it is not in the cache."""
    [built] = build_images([name], cache=cache, recipes=recipes)
    return built.path


def build_images(
    names: Sequence[str],
    *,
    cache: Cache | None = None,
    recipes: Mapping[str, Recipe] = RECIPES,
    refresh: bool = False,
) -> Iterator[Built]:
    """Return an iterator over images, each built when it is asked for; a wrong name is an error at once.

    An image in the cache is taken without asking apt. With ``refresh`` the package lists are renewed, and an image is
    built again if that changed the version of any package in it.
    """
    wanted = [find(name, recipes) for name in names]
    cache = cache or Cache.default()
    if refresh:
        debs.update()
    return (ensure(recipe, cache=cache, refresh=refresh) for recipe in wanted)


def state(recipe: Recipe, *, cache: Cache) -> Built | None:
    """Return the image of a recipe, if the cache has it."""
    return cache.lookup(recipe.name, recipe_key(recipe))


def ensure(recipe: Recipe, *, cache: Cache, refresh: bool) -> Built:
    """Return the image from the cache, or build it."""
    if not refresh and (built := state(recipe, cache=cache)):
        return built
    with cache.building() as work:
        # Another build may have made it while this one waited for the lock.
        if not refresh and (built := state(recipe, cache=cache)):
            return built
        try:
            packages = fetch(recipe, cache=cache)
        except (CommandError, PackageError):
            if refresh:
                raise
            debs.update()  # old lists name versions that the mirrors no longer have
            packages = fetch(recipe, cache=cache)
        return build(recipe, packages, cache=cache, work=work)


def fetch(recipe: Recipe, *, cache: Cache) -> list[list[debs.Package]]:
    """Return each layer's own packages, with their files in the cache.

    What the layers below have, or exclude, does not come again.
    """
    cache.apt.mkdir(exist_ok=True)
    resolved: list[list[debs.Package]] = []
    absent: list[str] = []
    for layer in recipe.layers:
        absent += layer.exclude
        present = [package for packages in resolved for package in packages]
        resolved.append(debs.resolve(layer.packages, present=present, absent=absent, cache=cache.apt))
        debs.download(resolved[-1], cache=cache.apt, into=cache.debs)
    return resolved


def build(recipe: Recipe, packages: list[list[debs.Package]], *, cache: Cache, work: Path) -> Built:
    """Build and publish an image, unless these very inputs were built before."""
    inputs = [f"{package.name}={package.version}" for layer in packages for package in layer]
    if any(layer.programs for layer in recipe.layers):
        inputs += toolchain()
    if any(isinstance(wanted, GoProgram | GoSource) for layer in recipe.layers for wanted in layer.modules):
        inputs.append(go_version())
    key = recipe_key(recipe)
    known = state(recipe, cache=cache)
    if known and known.inputs == tuple(inputs):
        return known
    layers: list[Layer] = []
    lower: set[str] = set()
    for number, layer in enumerate(recipe.layers):
        files = [cache.debs / package.file for package in packages[number]]
        made, paths = build_layer(layer, files, path=work / f"layer-{number}", lower=lower)
        layers.append(made)
        lower |= paths
    image = make_image(reference=recipe.reference, architecture=architecture(), command=recipe.command, layers=layers)
    path = work / f"{recipe.name}-{digest(key, *inputs)}.tar"
    with path.open("wb") as out:
        write_layout(image, out)
    built = Built(path=path, digest=image.digest, size=path.stat().st_size, inputs=tuple(inputs))
    return cache.publish(recipe.name, key, built, work=work)


def build_layer(layer: LayerRecipe, files: Sequence[Path], *, path: Path, lower: set[str]) -> tuple[Layer, set[str]]:
    """Write a layer of the packages in ``files`` to ``path``; return it with the paths in it."""
    with tempfile.TemporaryFile(dir=path.parent) as spool:
        shipped = [entry for deb in files for entry in unpack(deb, spool=spool)]
        added = []
        if layer.busybox:
            added += applet_links(shipped, busybox=layer.busybox, spool=spool, work=path.parent)
        added += [compile_program(program, work=path.parent) for program in layer.programs]
        added += [add_from_modules(wanted) for wanted in layer.modules]
        entries = assemble(shipped, [*added, *layer.entries], lower=lower)
        made = write_layer(path, partial(write_tar, entries, spool=spool))
    return made, {entry.path for entry in entries}


def recipe_key(recipe: Recipe) -> str:
    """Return what a recipe's image depends on, apart from the versions of packages."""
    return digest(str(FORMAT), architecture(), repr(recipe))


def architecture() -> str:
    """Return this machine's architecture as Debian and the image specification call it."""
    return ARCHITECTURES.get(platform.machine(), platform.machine())


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
