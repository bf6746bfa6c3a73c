"""For maintainers: write the lock files after a version in ``components.toml`` has changed.

python -m pinnace.components.lock go [NAME…]        go.mod and go.sum, from the Go module proxy
python -m pinnace.components.lock build [NAME…]     SHA256SUMS of the installed builds
python -m pinnace.components.lock release [NAME…]   SHA256SUMS of upstream's releases, for all architectures
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.components import release
from pinnace.components.download import read_small
from pinnace.components.manifest import ARCHITECTURES, architecture, select
from pinnace.components.store import ComponentState, ComponentStores, Origin
from pinnace.errors import ComponentError

if TYPE_CHECKING:
    from pinnace.components.manifest import Component

GO = "1.26.0"  # the oldest Go that Kubernetes accepts


def lock_go(component: Component) -> None:
    """Resolve the dependencies of a component's packages exactly as its own go.mod does."""
    component.lock.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ) | {"GOFLAGS": "-mod=mod", "GOWORK": "off"}

    def go(*args: str) -> str:
        return subprocess.run(
            ["go", *args], cwd=component.lock, env=environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    (component.lock / "go.sum").unlink(missing_ok=True)
    text = f"module pinnace.invalid/build/{component.name}\n\ngo {GO}\n"
    if component.name == "kubernetes":
        module = json.loads(go("mod", "download", "-json", f"k8s.io/kubernetes@v{component.version}"))
        text += staging_replaces(Path(module["GoMod"]).read_text(), component.version)
    (component.lock / "go.mod").write_text(text)
    for package in component.build.packages.values():
        if package.endswith(".c"):
            module = "/".join(package.split("/")[:2])
            go("get", f"{module}@v{select((module.split('/')[1],))[0].version}")
            go("mod", "download", module)
        else:
            go("get", "-tool", f"{package}@v{component.version}")


def staging_replaces(go_mod: str, version: str) -> str:
    """Kubernetes replaces its libraries by directories of its own tree; outside of it they are modules v0.X.Y."""
    staged = re.findall(r"(\S+) => \./staging/src/\S+", go_mod)
    published = "v0." + version.split(".", 1)[1]
    lines = "".join(f"\t{module} => {module} {published}\n" for module in staged)
    return f"\nreplace (\n{lines})\n"


def built_sums(component: Component) -> dict[str, str]:
    """The checksums of the binaries in the store, if they were built here and without C."""
    arch = architecture()
    entry = ComponentStores.default(arch).inspect(component, deep=True)
    if entry.state is not ComponentState.INSTALLED or entry.record is None or entry.record.origin is not Origin.BUILD:
        raise ComponentError(f"{component.label} is not in the store as a build: run `pinnace fetch --from build`")
    if component.build.needs_c:
        return {}
    return {f"build/{entry.record.detail}/{arch}/{name}": file.sha256 for name, file in entry.record.files.items()}


def release_sums(component: Component) -> dict[str, str]:
    """The checksums that upstream publishes of its release files."""
    sums = {}
    for arch in ARCHITECTURES.values():
        for url in release.urls(component, arch) if component.release.url else ():
            name = url.rsplit("/", 1)[1]
            text = read_small(release.checksums_url(component, arch, url)).decode()
            sums[f"release/{arch}/{name}"] = release.parse_checksums(text, name)
    return sums


def write_sums(component: Component, kind: str, sums: dict[str, str]) -> None:
    """Replace the lines of one kind in SHA256SUMS; the other kind stays."""
    path = component.lock / "SHA256SUMS"
    old = path.read_text().splitlines() if path.exists() else []
    kept = [line for line in old if not line.split(maxsplit=1)[1].startswith(f"{kind}/")]
    lines = sorted(kept + [f"{digest}  {name}" for name, digest in sums.items()], key=lambda line: line.split()[1])
    if lines:
        path.write_text("\n".join(lines) + "\n")


def main(argv: list[str]) -> None:
    kind, *names = argv
    for component in select(tuple(names)):
        if kind == "go":
            lock_go(component)
        else:
            write_sums(component, kind, {"build": built_sums, "release": release_sums}[kind](component))


if __name__ == "__main__":
    main(sys.argv[1:])
