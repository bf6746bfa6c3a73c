"""Packages: what is asked of apt, and what is read from its answers."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from testbed.errors import PackageError
from testbed.images import debs
from testbed.images.debs import Package

if TYPE_CHECKING:
    from pathlib import Path

SHOWN = """\
Package: debconf
Version: 1.5.82
Architecture: all
Provides: debconf-2.0
Multi-Arch: foreign
Description-en: a long one
 whose Provides: is text
SHA256: 0011

Package: libcrypt1
Version: 1:4.4.33-2
Architecture: amd64
SHA256: 2233

"""
URIS = """\
'http://mirror/pool/libcrypt1_4.4.33-2_amd64.deb' libcrypt1_1%3a4.4.33-2_amd64.deb 89464 SHA256:2233
'http://mirror/pool/libstdc%2b%2b6_12_amd64.deb' libstdc++6_12_amd64.deb 1 MD5Sum:44
"""
DEBCONF = Package(
    name="debconf", version="1.5.82", architecture="all", sha256="0011", provides="debconf-2.0", multi_arch="foreign"
)
LIBCRYPT1 = Package(name="libcrypt1", version="1:4.4.33-2", architecture="amd64", sha256="2233")


def test_packages_are_read_from_apt_cache() -> None:
    assert debs.parse_packages(SHOWN) == [DEBCONF, LIBCRYPT1]


def test_names_are_read_from_print_uris() -> None:
    assert debs.uri_names(URIS) == ["libcrypt1", "libstdc++6"]


def test_file_names_are_those_of_apt_get_download() -> None:
    assert LIBCRYPT1.file == "libcrypt1_1%3a4.4.33-2_amd64.deb"


def test_status_file_says_installed_and_what_is_provided_but_not_what_is_needed() -> None:
    text = debs.status_file([DEBCONF, LIBCRYPT1])
    assert text.count("Status: install ok installed\n") == 2
    assert "Provides: debconf-2.0\n" in text
    assert "Depends" not in text


def test_a_file_cut_off_is_not_intact(tmp_path: Path) -> None:
    (tmp_path / "x.deb").write_bytes(b"whole")
    assert debs.intact(tmp_path / "x.deb", hashlib.sha256(b"whole").hexdigest())
    assert not debs.intact(tmp_path / "x.deb", hashlib.sha256(b"whole and more").hexdigest())
    assert not debs.intact(tmp_path / "absent.deb", "")


@pytest.mark.build
def test_closure_is_independent_of_this_machine(tmp_path: Path) -> None:
    """libc6 is installed on every machine; it is in the closure all the same."""
    names = [package.name for package in debs.resolve(["bash"], present=[], absent=["dpkg"], cache=tmp_path)]
    assert {"bash", "libc6", "libtinfo6"} <= set(names)
    assert names == sorted(names)


@pytest.mark.build
def test_excluded_packages_and_what_only_they_need_stay_out(tmp_path: Path) -> None:
    everything = debs.resolve(["nginx"], present=[], absent=[], cache=tmp_path)
    without = debs.resolve(["nginx"], present=[], absent=["iproute2"], cache=tmp_path)
    assert {"iproute2", "libbpf1"} <= {package.name for package in everything}
    assert not {"iproute2", "libbpf1"} & {package.name for package in without}


@pytest.mark.build
def test_a_layer_brings_nothing_that_is_below_it(tmp_path: Path) -> None:
    lower = debs.resolve(["libc6"], present=[], absent=[], cache=tmp_path)
    upper = debs.resolve(["libc6", "zlib1g"], present=lower, absent=[], cache=tmp_path)
    assert [package.name for package in upper] == ["zlib1g"]


@pytest.mark.build
@pytest.mark.parametrize("absent", [["no-such-package"], ["dpkg", "no-such-package"]])
def test_an_unknown_exclusion_is_an_error(tmp_path: Path, absent: list[str]) -> None:
    with pytest.raises(PackageError, match="no package no-such-package"):
        debs.resolve(["bash"], present=[], absent=absent, cache=tmp_path)


@pytest.mark.build
def test_a_damaged_download_is_fetched_again(tmp_path: Path) -> None:
    [package] = debs.show(["netbase"], cache=tmp_path)
    into = tmp_path / "debs"
    into.mkdir()
    (into / package.file).write_bytes(b"half a pack")
    debs.download([package], cache=tmp_path, into=into)
    assert debs.intact(into / package.file, package.sha256)
