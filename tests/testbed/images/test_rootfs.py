"""Layers: what is taken from a package, and how it is written."""

from __future__ import annotations

import io
import tarfile

import pytest

from testbed.errors import BedError
from testbed.images.entries import Entry, Kind, Span, directory, file, link, merge_usr
from testbed.images.rootfs import assemble, read_members, write_tar

CAPABILITY = "SCHILY.xattr.security.capability"


def package(*members: tarfile.TarInfo) -> list[Entry]:
    """Return what the reader makes of a package's tar; a file's content is its own name."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info in members:
            content = info.name.encode() if info.isreg() else b""
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    data.seek(0)
    with tarfile.open(fileobj=data, mode="r|") as tar:
        return list(read_members(tar, spool=io.BytesIO()))


def member(name: str, type_: bytes = tarfile.REGTYPE, *, mode: int = 0o644, linkname: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname, info.mtime = type_, mode, linkname, 12345
    return info


def hardlink(path: str, target: str) -> Entry:
    return Entry(path=path, kind=Kind.HARDLINK, mode=0o644, target=target)


def tar_of(entries: list[Entry], spool: bytes = b"") -> bytes:
    out = io.BytesIO()
    write_tar(entries, out, spool=io.BytesIO(spool))
    return out.getvalue()


@pytest.mark.parametrize(
    ("path", "merged"),
    [
        ("bin/ls", "usr/bin/ls"),
        ("lib64/ld.so", "usr/lib64/ld.so"),
        ("sbin", "usr/sbin"),
        ("usr/bin/env", "usr/bin/env"),
        ("library/x", "library/x"),
        ("etc/bin/x", "etc/bin/x"),
    ],
)
def test_usr_merge(path: str, merged: str) -> None:
    assert merge_usr(path) == merged


def test_package_paths_are_merged_and_hard_links_follow() -> None:
    entries = package(
        member("./", tarfile.DIRTYPE),
        member("./bin/", tarfile.DIRTYPE, mode=0o755),
        member("./bin/perl"),
        member("./bin/perl5", tarfile.LNKTYPE, linkname="./bin/perl"),
        member("./bin/sh", tarfile.SYMTYPE, linkname="dash"),
    )
    assert [(entry.path, entry.kind, entry.target) for entry in entries] == [
        ("usr/bin", Kind.DIRECTORY, ""),
        ("usr/bin/perl", Kind.FILE, ""),
        ("usr/bin/perl5", Kind.HARDLINK, "usr/bin/perl"),
        ("usr/bin/sh", Kind.SYMLINK, "dash"),
    ]


def test_documentation_is_dropped() -> None:
    entries = package(
        member("./usr/share/doc/x/changelog.gz"),
        member("./usr/share/man/man1/x.1.gz"),
        member("./usr/share/locale", tarfile.DIRTYPE),
        member("./usr/share/document"),
    )
    assert [entry.path for entry in entries] == ["usr/share/document"]


def test_owner_mode_and_capabilities_stay() -> None:
    info = member("./usr/bin/ping", mode=0o4755)
    info.uid, info.gid, info.uname = 3, 42, "somebody"
    info.pax_headers = {CAPABILITY: "value", "comment": "no"}
    [entry] = package(info)
    assert (entry.mode, entry.uid, entry.gid, entry.xattrs) == (0o4755, 3, 42, ((CAPABILITY, "value"),))
    with tarfile.open(fileobj=io.BytesIO(tar_of([entry], spool=b"./usr/bin/ping"))) as tar:
        [written] = tar
    assert (written.mode, written.uid, written.gid, written.uname) == (0o4755, 3, 42, "")
    assert written.pax_headers[CAPABILITY] == "value"
    assert written.mtime == 0


def test_devices_are_refused() -> None:
    with pytest.raises(BedError, match="dev/null"):
        package(member("./dev/null", tarfile.CHRTYPE))


def test_order_is_that_of_names_and_hard_links_come_last() -> None:
    entries = assemble([file("b", ""), hardlink("a", "b"), file("c/d", "")], [])
    assert [entry.path for entry in entries] == ["b", "c", "c/d", "a"]


def test_the_tar_depends_on_the_content_alone() -> None:
    shipped = [file("b/x", "1"), directory("b", mode=0o700), link("a", "b")]
    assert tar_of(assemble(shipped, [])) == tar_of(assemble(reversed(shipped), []))


def test_a_recipe_replaces_what_a_package_ships() -> None:
    [_, motd] = assemble([file("etc/motd", "theirs")], [file("etc/motd", "ours")])
    assert motd.content == b"ours"


def test_packages_may_share_directories_but_not_files() -> None:
    assert len(assemble([directory("etc"), directory("etc", mode=0o700)], [])) == 1
    with pytest.raises(BedError, match="two packages ship /etc/motd"):
        assemble([file("etc/motd", "1"), file("etc/motd", "2")], [])


def test_directories_of_lower_layers_are_not_made_again() -> None:
    upper = assemble([directory("tmp"), file("tmp/x", "")], [file("root/y", "")], lower={"tmp", "root"})
    assert [entry.path for entry in upper] == ["root/y", "tmp/x"]


def test_nothing_lies_below_a_link() -> None:
    with pytest.raises(BedError, match="no directory"):
        assemble([file("var/run/x", "")], [link("var/run", "/run")])


def test_a_hard_link_needs_its_file() -> None:
    with pytest.raises(BedError, match="hard link"):
        assemble([hardlink("a", "usr/share/doc/gone")], [])


def test_content_comes_from_the_spool() -> None:
    entry = Entry(path="x", kind=Kind.FILE, mode=0o644, content=Span(start=2, size=3))
    with tarfile.open(fileobj=io.BytesIO(tar_of([entry], spool=b"__abc__"))) as tar:
        stream = tar.extractfile("x")
        assert stream
        assert stream.read() == b"abc"
