"""Binaries built from the Go module proxy, reproducibly.

Each component has a small module of its own in ``locks/``: its ``go.mod`` requires the upstream module at the pinned
version, and its ``go.sum`` pins every file of every dependency. The build may not change either. With ``-trimpath``,
no C and the version stamped in, the same Go gives the same bytes on every machine; ``SHA256SUMS`` has their checksums.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.components.store import sha256_of
from pinnace.errors import ChecksumError, ComponentError, NoSpaceError, ToolchainError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pinnace.components.events import Reporter
    from pinnace.components.manifest import Component

GIB = 1 << 30
PR_SET_PDEATHSIG = 1
ERROR_LINES = 12  # last lines of the compiler's output that an error shows
INHERITED = ("GOPROXY", "GONOPROXY", "GOPRIVATE", "GOSUMDB", "GONOSUMDB", "GOINSECURE", "GOTOOLCHAIN", "GOPATH",
             "GOCACHE", "GOMODCACHE", "GOTMPDIR", "GOROOT")  # fmt: skip


def other_ways(component: Component) -> str:
    """How to get a component that cannot be built here."""
    if not component.release.exists:
        return f"Or take it from a bundle with `pinnace fetch --from FILE {component.name}`."
    return (
        "Or take the official binaries with `pinnace fetch --from release` (needs internet), "
        "or a site's bundle with `pinnace fetch --from FILE`."
    )


def build_argv(component: Component, binary: str, output: Path) -> list[str]:
    """The command that builds one binary."""
    build = component.build
    ldflags = ["-s", "-w"]
    ldflags += [f"-X {variable}={component.expand(value)}" for variable, value in build.stamps.items()]
    flags = ["-mod=readonly", "-trimpath", "-buildvcs=false", "-v"]
    if build.libraries:
        ldflags += ["-linkmode external", "-extldflags -static-pie"]
        flags += ["-buildmode=pie"]
    if build.tags:
        flags += [f"-tags={','.join(build.tags)}"]
    return ["go", "build", *flags, f"-ldflags={' '.join(ldflags)}", "-o", str(output), build.packages[binary]]


def compile_argv(component: Component, source: Path, output: Path) -> list[str]:
    """The command that compiles a binary of one C file, as upstream's Makefile does."""
    return ["gcc", "-Os", "-Wall", "-static", "-s", f"-DVERSION=v{component.version}", "-o", str(output), str(source)]


def build_environment(component: Component, arch: str, environment: dict[str, str]) -> dict[str, str]:
    """The user's environment without the Go settings that would change the result."""
    clean = {name: value for name, value in environment.items() if not _go_setting(name) or name in INHERITED}
    return clean | {
        "GO111MODULE": "on",
        "GOFLAGS": "",
        "GOWORK": "off",
        "GOOS": "linux",
        "GOARCH": arch,
        "GOAMD64": "v1",
        "GOARM64": "v8.0",
        "CGO_ENABLED": "1" if component.build.needs_c else "0",
    }


def _go_setting(name: str) -> bool:
    return name.startswith(("GO", "CGO_")) and name != "GOOGLE_APPLICATION_CREDENTIALS"


def build(component: Component, arch: str, target: Path, reporter: Reporter) -> str:
    """Build a component's binaries into ``target``. Returns the version of Go, for the record."""
    environment = build_environment(component, arch, dict(os.environ))
    go = check_toolchain(component, environment)
    check_space(component, environment)
    for binary in component.binaries:
        reporter.step(component.label, f"building {binary}")
        package = component.build.packages[binary]
        if package.endswith(".c"):
            source = module_file(component, package, environment)
            run(component, compile_argv(component, source, target / binary), environment, reporter)
        else:
            run(component, build_argv(component, binary, target / binary), environment, reporter)
        pinned = component.pin(f"build/{go}/{arch}/{binary}")
        found = sha256_of(target / binary)
        if pinned and found != pinned:
            raise ChecksumError(
                f"{binary} came out of {go} with sha256 {found}, but every {go} should give {pinned}",
                hint="This Go toolchain or its cache is not the original one. Try `go clean -cache`, or an official "
                f"Go. {other_ways(component)}",
            )
    return go


def module_file(component: Component, path: str, environment: dict[str, str]) -> Path:
    """A file of a Go module that the lock names, downloaded and verified by Go."""
    result = _run_go(component, environment, "mod", "download", "-json")
    if result.returncode:
        raise ComponentError(
            f"cannot get the source of {component.label}: {result.stderr.strip()}", hint=other_ways(component)
        )
    module = json.loads(result.stdout)
    return Path(module["Dir"]) / path.removeprefix(f"{module['Path']}/")


def _run_go(component: Component, environment: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["go", *args],
        cwd=component.lock, env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


def check_toolchain(component: Component, environment: dict[str, str]) -> str:
    """The version of Go for this component; ToolchainError says what is missing."""
    if not shutil.which("go", path=environment.get("PATH")):
        raise ToolchainError(
            f"building {component.label} from source needs Go, and there is no `go` on the PATH",
            hint=f"Install Go {_required_go(component)} or newer. {other_ways(component)}",
        )
    result = _run_go(component, environment, "env", "GOVERSION")
    if result.returncode:
        raise ToolchainError(
            f"this Go cannot build {component.label}: {result.stderr.strip()}",
            hint=f"Install Go {_required_go(component)} or newer. {other_ways(component)}",
        )
    if component.build.needs_c:
        _check_c(component, environment)
    return result.stdout.strip()


def _required_go(component: Component) -> str:
    match = re.search(r"^go (\S+)$", (component.lock / "go.mod").read_text(), re.MULTILINE)
    return match[1] if match else ""


def _check_c(component: Component, environment: dict[str, str]) -> None:
    missing = [tool for tool in ("gcc", "pkg-config") if not shutil.which(tool, path=environment.get("PATH"))]
    if "pkg-config" not in missing:
        missing += [
            library
            for library in component.build.libraries
            if subprocess.run(["pkg-config", "--exists", library], check=False, env=environment).returncode
        ]
    if missing:
        raise ToolchainError(
            f"building {component.label} from source needs {', '.join(missing)}",
            hint=f"On Debian: apt-get install gcc libc6-dev pkg-config libseccomp-dev. {other_ways(component)}",
        )


def check_space(component: Component, environment: dict[str, str]) -> None:
    """Fail before ten minutes of work, not in the middle of them."""
    result = _run_go(component, environment, "env", "GOCACHE", "GOMODCACHE")
    for cache in map(Path, result.stdout.split()):
        existing = next(path for path in (cache, *cache.parents) if path.exists())
        free = shutil.disk_usage(existing).free
        if free < component.build.gib * GIB:
            raise NoSpaceError(
                f"building {component.label} needs {component.build.gib} GiB for Go's caches, and {cache} has "
                f"{free / GIB:.1f} GiB free",
                hint=f"Set GOCACHE and GOMODCACHE to a larger file system. {other_ways(component)}",
            )


def run(component: Component, argv: list[str], environment: dict[str, str], reporter: Reporter) -> None:
    """Run a compiler, report its progress, and kill it with all its children if we are interrupted."""
    process = subprocess.Popen(
        argv, cwd=component.lock, env=environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_die_with_parent,  # noqa: PLW1509 - there are no threads
    )  # fmt: skip
    try:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        output = _follow(component, process.stdout, reporter)
        code = process.wait()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if code == 0:
        return
    tail = "\n".join(output[-ERROR_LINES:])
    if "no space left on device" in tail or "disk quota exceeded" in tail:
        raise NoSpaceError(
            f"no space left while building {component.label}:\n{tail}",
            hint=f"Set GOCACHE, GOMODCACHE and GOTMPDIR to a larger file system. {other_ways(component)}",
        )
    raise ComponentError(f"building {component.label} failed:\n{tail}", hint=other_ways(component))


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _follow(component: Component, lines: Iterable[str], reporter: Reporter) -> list[str]:
    """Collect the output of ``go build -v``: a line for each module that it downloads and package that it compiles."""
    output = []
    packages = 0
    for line in map(str.rstrip, lines):
        output.append(line)
        if line.startswith("go: downloading "):
            reporter.progress(component.label, line.removeprefix("go: "))
        else:
            packages += 1
            reporter.progress(component.label, f"compiling, {packages} packages so far: {line}")
    return output
