"""Installs components into a store, from a release, a build or a bundle."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.components.build import build
from pinnace.components.bundle import Bundle
from pinnace.components.download import reachable
from pinnace.components.release import fetch_release, first_url
from pinnace.components.store import ComponentState, Origin
from pinnace.errors import ComponentError, ToolchainError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pinnace.components.events import Reporter
    from pinnace.components.manifest import Component
    from pinnace.components.store import ComponentStore, ComponentStores, Entry

    Source = Callable[[Component, Path], tuple[Origin, str]]


def choose_source(
    wanted: str | None, missing: Sequence[Component], arch: str, reporter: Reporter, sha256: str = ""
) -> Source:
    """The source of the missing components: the requested one, or the first that works here.

    What upstream does not release is built. ``sha256`` is the checksum of the bundle, if that is the source.
    """

    def from_release(component: Component, target: Path) -> tuple[Origin, str]:
        return Origin.RELEASE, fetch_release(component, arch, target, reporter)

    def from_build(component: Component, target: Path) -> tuple[Origin, str]:
        return Origin.BUILD, build(component, arch, target, reporter)

    def from_release_or_build(component: Component, target: Path) -> tuple[Origin, str]:
        return (from_release if component.release.exists else from_build)(component, target)

    if wanted == Origin.RELEASE:
        _check_released(missing)
        return from_release
    if wanted == Origin.BUILD:
        return from_build
    if wanted is not None:
        return _from_bundle(Path(wanted), missing, arch, reporter, sha256)
    released = [component for component in missing if component.release.exists]
    if released and reachable(first_url(released[0], arch)):
        return from_release_or_build
    if not released:
        return from_build  # without Go, it says what is missing
    if shutil.which("go"):
        reporter.note("fetch", "upstream's releases cannot be reached from here; building from source instead")
        return from_build
    raise ToolchainError(
        "neither upstream's releases nor a Go toolchain are at hand: "
        "the release server does not answer, and there is no `go` on the PATH",
        hint="On a machine with internet run `pinnace fetch --bundle FILE`, copy the file here and run "
        "`pinnace fetch --from FILE`; or install Go and run `pinnace fetch --from build`.",
    )


def _check_released(components: Sequence[Component]) -> None:
    """Raise if upstream releases one of them in no form that we could verify, before any is installed."""
    unreleased = [component for component in components if not component.release.exists]
    if unreleased:
        names = " ".join(component.name for component in unreleased)
        raise ComponentError(
            f"there is no release of {', '.join(component.label for component in unreleased)} to fetch: upstream's "
            "checksums of it are not known",
            hint=f"Build it with `pinnace fetch --from build {names}`, which needs Go; or take it from a bundle with "
            f"`pinnace fetch --from FILE {names}`.",
        )


def _from_bundle(file: Path, missing: Sequence[Component], arch: str, reporter: Reporter, sha256: str) -> Source:
    if not file.is_file():
        raise UsageError(
            f"there is no file {file} to fetch from",
            hint="`--from` takes `release`, `build`, or the path of a bundle made with `pinnace fetch --bundle`.",
        )
    bundle = Bundle(file, sha256)
    bundle.check(missing, arch)  # before any component is installed

    def from_bundle(component: Component, target: Path) -> tuple[Origin, str]:
        reporter.step(component.label, f"unpacking from {file.name}")
        return Origin.BUNDLE, bundle.unpack(component, arch, target)

    return from_bundle


def fetch(
    components: Sequence[Component],
    *,
    stores: ComponentStores,
    target: ComponentStore,
    wanted: str | None,
    reporter: Reporter,
    deep: bool = False,
    sha256: str = "",
) -> list[Entry]:
    """Verify all components, and install missing and damaged ones into ``target``."""
    entries = {component.name: stores.inspect(component, deep=deep) for component in components}
    for entry in entries.values():
        if entry.state is ComponentState.DAMAGED:
            reporter.note(entry.component.label, f"damaged ({entry.reason}); fetching it again")
    missing = [entry.component for entry in entries.values() if entry.state is not ComponentState.INSTALLED]
    if missing:
        source = choose_source(wanted, missing, target.arch, reporter, sha256)
        installed = [fetch_one(component, target, source, reporter) for component in missing]
        entries |= {entry.component.name: entry for entry in installed}
    return list(entries.values())


def fetch_one(component: Component, store: ComponentStore, source: Source, reporter: Reporter) -> Entry:
    """Install one component, unless another process has done it while we waited for the lock."""

    def waiting(holder: str) -> None:
        reporter.step(component.label, f"waiting for {holder}, which is fetching it")

    with store.lock(component, waiting):
        entry = store.inspect(component)
        if entry.state is ComponentState.INSTALLED:
            reporter.done(component.label, "installed meanwhile by another process")
            return entry
        start = time.monotonic()
        entry = store.install(component, lambda target: source(component, target))
    detail = f"{entry.record.origin}: {entry.record.detail}" if entry.record else ""
    reporter.done(component.label, f"installed in {time.monotonic() - start:.1f} s ({detail})")
    return entry
