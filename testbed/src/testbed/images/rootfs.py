"""A layer from Debian packages and entries: unpacked, merged under /usr, sorted, and written as a tar.

No maintainer script runs. What a package does in its scripts, such as a link of the alternatives, stands in the
recipe. Packages are read as streams, and their files wait in a spool on disk until all names are known and sorted.
"""

from __future__ import annotations

import io
import posixpath
import shutil
import stat
import subprocess
import tarfile
from typing import IO, TYPE_CHECKING

from testbed.errors import BedError
from testbed.images.commands import run
from testbed.images.entries import Entry, Kind, Span, directory, link, merge_usr

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Set as AbstractSet
    from pathlib import Path

__all__ = ["applet_links", "assemble", "read_members", "unpack", "write_tar"]

DROPPED = tuple(
    f"usr/share/{name}/" for name in ("bug", "doc", "doc-base", "info", "lintian", "linda", "locale", "man")
)
TYPES = {
    tarfile.REGTYPE: Kind.FILE,
    tarfile.AREGTYPE: Kind.FILE,
    tarfile.DIRTYPE: Kind.DIRECTORY,
    tarfile.SYMTYPE: Kind.SYMLINK,
    tarfile.LNKTYPE: Kind.HARDLINK,
}
TAR_TYPES = {kind: type_ for type_, kind in reversed(TYPES.items())}
XATTR = "SCHILY.xattr."


def unpack(deb: Path, *, spool: IO[bytes]) -> list[Entry]:
    """Return the entries of a package; the bytes of its files go to the end of the spool."""
    argv = ["dpkg-deb", "--fsys-tarfile", str(deb)]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None  # noqa: S101
        assert process.stderr is not None  # noqa: S101
        entries: list[Entry] = []
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|") as tar:
                entries = list(read_members(tar, spool=spool))
            process.stdout.read()  # the padding: dpkg-deb must not die of a closed pipe
            broken = ""
        except tarfile.TarError as error:
            broken = str(error)
        said = process.stderr.read().decode(errors="replace").strip()
    if broken or process.returncode:
        raise BedError(f"{deb} cannot be unpacked: {said or broken}", hint="Remove that file and build again.")
    return entries


def read_members(tar: tarfile.TarFile, *, spool: IO[bytes]) -> Iterator[Entry]:
    """Yield what is wanted of a package's tar, with owners, modes and capabilities as they are there."""
    for member in tar:
        path = merge_usr(member.name.removeprefix("./").strip("/"))
        if path in {"", "."} or f"{path}/".startswith(DROPPED):
            continue
        if (kind := TYPES.get(member.type)) is None:
            raise BedError(f"{path}: a tar member of type {member.type!r} has no place in an image")
        span = Span(start=spool.seek(0, io.SEEK_END), size=member.size)
        if kind is Kind.FILE and (content := tar.extractfile(member)):
            shutil.copyfileobj(content, spool)
        target = member.linkname
        yield Entry(
            path=path,
            kind=kind,
            mode=stat.S_IMODE(member.mode),
            uid=member.uid,
            gid=member.gid,
            target=merge_usr(target.removeprefix("./").lstrip("/")) if kind is Kind.HARDLINK else target,
            content=span if kind is Kind.FILE else b"",
            xattrs=tuple(sorted((key, value) for key, value in member.pax_headers.items() if key.startswith(XATTR))),
        )


def assemble(shipped: Iterable[Entry], added: Iterable[Entry], *, lower: AbstractSet[str] = frozenset()) -> list[Entry]:
    """Return a layer's entries in the order of their writing. What a recipe adds replaces what a package ships.

    ``lower`` are the paths of the layers below. As with dpkg, a directory that is there already is left as it is, even
    if it is a link to one.
    """
    tree: dict[str, Entry] = {}
    for entry in shipped:
        if entry.kind is Kind.DIRECTORY and entry.path in lower:
            continue
        known = tree.setdefault(entry.path, entry)
        if known != entry and {known.kind, entry.kind} != {Kind.DIRECTORY}:
            raise BedError(f"two packages ship /{entry.path}", hint="Exclude one of them in the recipe.")
    tree |= {entry.path: entry for entry in added}
    for path in sorted(tree):
        for parent in parents(path):
            if parent not in lower and tree.setdefault(parent, directory(parent)).kind is not Kind.DIRECTORY:
                raise BedError(f"/{path} lies below /{parent}, which is no directory")
    for entry in tree.values():
        if entry.kind is Kind.HARDLINK and entry.target not in tree:
            raise BedError(f"/{entry.path} is a hard link to /{entry.target}, which is not in the layer")
    # A hard link must come after the file that it names.
    return sorted(tree.values(), key=lambda entry: (entry.kind is Kind.HARDLINK, entry.path))


def parents(path: str) -> list[str]:
    """Return the directories above a path, the nearest first."""
    above = posixpath.dirname(path)
    return [above, *parents(above)] if above else []


def applet_links(entries: Iterable[Entry], *, busybox: str, spool: IO[bytes], work: Path) -> list[Entry]:
    """Return a link for each applet of a static busybox in the layer. It knows them best itself, so it is asked."""
    found = next((entry for entry in entries if entry.path == busybox), None)
    if found is None:
        raise BedError(f"no package of the layer ships /{busybox}")
    program = work / "busybox"
    program.write_bytes(read_content(found, spool=spool))
    program.chmod(0o755)
    paths = {merge_usr(line) for line in run([str(program), "--list-full"]).split()} - {busybox}
    return [link(path, f"/{busybox}") for path in sorted(paths)]


def write_tar(entries: Iterable[Entry], out: IO[bytes], *, spool: IO[bytes]) -> None:
    """Write entries as a tar that depends on nothing but them: no time, no owner's name, no device number."""
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for entry in entries:
            member = tarfile.TarInfo(entry.path)
            member.type = TAR_TYPES[entry.kind]
            member.mode, member.uid, member.gid = entry.mode, entry.uid, entry.gid
            member.linkname = entry.target
            member.pax_headers = dict(entry.xattrs)
            content = read_content(entry, spool=spool)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def read_content(entry: Entry, *, spool: IO[bytes]) -> bytes:
    """Return the bytes of one file, wherever they are."""
    if isinstance(entry.content, bytes):
        return entry.content
    spool.seek(entry.content.start)
    return spool.read(entry.content.size)
