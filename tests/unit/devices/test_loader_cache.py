"""The loader's cache, against glibc itself: ldconfig reads what we write, and programs find their libraries by it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pinnace.devices import libraries
from pinnace.devices.loader_cache import FLAGS, CacheEntry, dump, parse, with_libraries

HOSTS = Path("/etc/ld.so.cache")
LDCONFIG = "/sbin/ldconfig"


def printed(cache: Path) -> list[str]:
    """What ldconfig reads in a cache, without its heading."""
    lines = subprocess.run([LDCONFIG, "-C", str(cache), "-p"], capture_output=True, text=True, check=True).stdout
    return [line.strip() for line in lines.splitlines() if "=>" in line]


def test_the_hosts_cache_is_read_and_written_as_ldconfig_does(tmp_path: Path) -> None:
    """In ldconfig's own order, in which the loader searches."""
    written = tmp_path / "cache"
    written.write_bytes(dump(parse(HOSTS.read_bytes())))
    expected = [line for line in printed(HOSTS) if "hwcap" not in line]
    assert len(expected) > 10
    assert printed(written) == expected


def test_libraries_replace_those_of_the_same_name(tmp_path: Path) -> None:
    names = [entry.name for entry in parse(HOSTS.read_bytes()) if entry.flags == FLAGS]
    added = {names[0]: "/elsewhere/one", "libcuda.so.1": "/elsewhere/libcuda.so.1"}
    cache = tmp_path / "cache"
    cache.write_bytes(with_libraries(HOSTS.read_bytes(), added))
    lines = printed(cache)
    assert [line for line in lines if line.endswith("=> /elsewhere/one")]
    assert sum(line.startswith(f"{names[0]} (") and "x86-64" in line for line in lines) <= 1
    assert sum(line.startswith("libcuda.so.1 (") for line in lines) == 1


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"glibc-ld.so.cache1.1", HOSTS.read_bytes()[:200]])
def test_what_is_no_cache_has_no_entries(content: bytes) -> None:
    assert parse(content) == []
    assert parse(with_libraries(content, {"liba.so.1": "/a"})) == [CacheEntry(name="liba.so.1", path="/a", flags=FLAGS)]


def test_the_real_loader_finds_a_library_by_it(tmp_path: Path) -> None:
    """In a root of its own, where nothing but the cache leads to the library."""
    if os.geteuid() != 0:
        pytest.skip("chroot needs root")
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "odd").mkdir()
    source = tmp_path / "a.c"
    source.write_text("int answer(void) { return 42; }\n")
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wl,-soname,libodd.so.1", "-o", str(root / "odd/x"), str(source)], check=True
    )
    source.write_text("int answer(void); int main(void) { return answer(); }\n")
    subprocess.run(["cc", "-o", str(root / "program"), str(source), str(root / "odd/x")], check=True)
    for line in subprocess.run(["ldd", "/bin/true"], capture_output=True, text=True, check=True).stdout.split():
        if line.startswith("/"):
            target = root / line.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(Path(line).read_bytes())
            target.chmod(0o755)
    run = ["chroot", str(root), "/program"]
    assert subprocess.run(run, check=False, capture_output=True).returncode == 127
    (root / "etc/ld.so.cache").write_bytes(with_libraries(b"", {"libodd.so.1": "/odd/x"}))
    assert subprocess.run(run, check=False, capture_output=True).returncode == 42


def bundle(tmp_path: Path) -> Path:
    (tmp_path / "bundle/rootfs/etc/ld.so.conf.d").mkdir(parents=True)
    return tmp_path / "bundle"


MOUNTS = [{"destination": f"{libraries.DIRECTORY}/libcuda.so.1", "source": "/x", "options": ["bind"]}]
CONFIG = {"root": {"path": "rootfs"}, "mounts": MOUNTS}


def test_a_container_with_a_driver_gets_a_cache_and_one_without_does_not(tmp_path: Path) -> None:
    place = bundle(tmp_path)
    libraries.update_loader_cache({"root": {"path": "rootfs"}, "mounts": []}, place)
    assert not (place / "rootfs/etc/ld.so.cache").exists()
    for _ in range(2):
        libraries.update_loader_cache(CONFIG, place)
        (entry,) = parse((place / "rootfs/etc/ld.so.cache").read_bytes())
        assert (entry.name, entry.path) == ("libcuda.so.1", f"{libraries.DIRECTORY}/libcuda.so.1")
    (file,) = (place / "rootfs/etc/ld.so.conf.d").iterdir()
    assert file.read_text() == f"{libraries.DIRECTORY}\n"


@pytest.mark.parametrize("link", ["etc", "etc/ld.so.cache", "etc/ld.so.conf.d"])
def test_no_link_of_an_image_leads_out_of_it(tmp_path: Path, link: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("theirs")
    root = tmp_path / "bundle/rootfs"
    (root / link).parent.mkdir(parents=True)
    (root / link).symlink_to(outside / "file" if link.endswith("cache") else outside)
    try:
        libraries.update_loader_cache(CONFIG, tmp_path / "bundle")
    except FileNotFoundError:
        assert link == "etc"
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == "theirs"


def test_a_cache_of_any_size_in_an_image_takes_no_memory_of_ours(tmp_path: Path) -> None:
    place = bundle(tmp_path)
    cache = place / "rootfs/etc/ld.so.cache"
    with cache.open("wb") as file:
        file.truncate(1 << 40)
    libraries.update_loader_cache(CONFIG, place)
    assert [entry.name for entry in parse(cache.read_bytes())] == ["libcuda.so.1"]


def test_an_image_of_one_static_program_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "bundle/rootfs").mkdir(parents=True)
    libraries.update_loader_cache(CONFIG, tmp_path / "bundle")
    assert list((tmp_path / "bundle/rootfs").iterdir()) == []


def test_the_drivers_libraries_have_all_their_names(tmp_path: Path) -> None:
    for name in ("libcuda.so.535.1", "libnvidia-ml.so.535.1", "libnvidia-container.so.1", "libz.so.1"):
        (tmp_path / name).touch()
    (tmp_path / "libcuda.so.1").symlink_to("libcuda.so.535.1")
    (tmp_path / "libcuda.so").symlink_to("libcuda.so.1")
    names = ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so.535.1", "libnvidia-container.so.1", "libz.so.1")
    entries = [CacheEntry(name=name, path=str(tmp_path / name), flags=FLAGS) for name in names]
    entries += [CacheEntry(name="libcuda.so.1", path="/lib32/libcuda.so.1", flags=3)]
    entries += [CacheEntry(name="libnvidia-gone.so.1", path="/gone", flags=FLAGS)]
    (tmp_path / "cache").write_bytes(dump(entries))
    real = str(tmp_path / "libcuda.so.535.1")
    assert libraries.nvidia_libraries(tmp_path / "cache") == {
        "libcuda.so": real,
        "libcuda.so.1": real,
        "libcuda.so.535.1": real,
        "libnvidia-ml.so.535.1": str(tmp_path / "libnvidia-ml.so.535.1"),
    }
    assert libraries.nvidia_libraries(tmp_path / "none") == {}
