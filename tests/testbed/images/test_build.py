"""Building and the cache, with images so small that they need no package."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.image_samples import ENTRIES, cache_in, read_layout, tiny_recipe
from testbed.errors import BedError, UsageError
from testbed.images import build, build_image, build_images
from testbed.images.cache import copy_to
from testbed.images.entries import file
from testbed.waiting import wait_until

BUILDER = """
import sys
from pathlib import Path
from support.image_samples import cache_in, tiny_recipe
from testbed.images import build_image
from testbed.images.entries import file
recipes = tiny_recipe(file("big", "0123456789abcdef" * int(sys.argv[2])))
print(build_image("tiny", cache=cache_in(Path(sys.argv[1])), recipes=recipes))
"""


def builder(root: Path, *, repeats: int) -> subprocess.Popen[str]:
    """Start a build of one large file in a process of its own."""
    tests = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(tests)}
    argv = [sys.executable, "-c", BUILDER, str(root), str(repeats)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def names_in(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()} - {"lock", "apt", "debs"}


def test_layout_is_valid_and_holds_the_entries(tmp_path: Path) -> None:
    layout = read_layout(build_image("tiny", cache=cache_in(tmp_path), recipes=tiny_recipe()))
    assert layout.reference == "localhost/pinnace-test/tiny:1"
    assert layout.config["config"]["Cmd"] == ["/bin/true"]
    members = layout.members()
    assert sorted(members) == ["bin", "etc", "etc/motd", "tmp"]
    assert members["tmp"].mode == 0o1777
    assert {member.mtime for member in members.values()} == {0}
    assert layout.manifest["layers"][0]["mediaType"].endswith("tar+gzip")


def test_the_same_recipe_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (
        build_image("tiny", cache=cache_in(tmp_path / name), recipes=tiny_recipe(layers=2)) for name in ("a", "b")
    )
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()


def test_another_recipe_gives_another_image_with_the_same_lower_layer(tmp_path: Path) -> None:
    one, two = (build_image("tiny", cache=cache_in(tmp_path), recipes=tiny_recipe(layers=n)) for n in (1, 2))
    assert one != two
    assert read_layout(one).manifest["layers"] == read_layout(two).manifest["layers"][:1]


def test_a_cached_image_is_there_at_once(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    path = build_image("tiny", cache=cache, recipes=tiny_recipe())
    before = path.stat()
    start = time.monotonic()
    assert build_image("tiny", cache=cache, recipes=tiny_recipe()) == path
    assert time.monotonic() - start < 0.2
    assert path.stat().st_ino == before.st_ino


def test_raising_the_format_builds_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_image("tiny", cache=cache_in(tmp_path), recipes=tiny_recipe())
    monkeypatch.setattr(build, "FORMAT", build.FORMAT + 1)
    assert build_image("tiny", cache=cache_in(tmp_path), recipes=tiny_recipe()) != first


@pytest.mark.parametrize("damage", ["truncate", "remove", "garble the record"])
def test_a_damaged_cache_is_mended(tmp_path: Path, damage: str) -> None:
    cache, recipes = cache_in(tmp_path), tiny_recipe()
    path = build_image("tiny", cache=cache, recipes=recipes)
    whole = path.read_bytes()
    if damage == "truncate":
        path.write_bytes(whole[:100])
    elif damage == "remove":
        path.unlink()
    else:
        next(tmp_path.glob("*.json")).write_text("{")
    assert build_image("tiny", cache=cache, recipes=recipes).read_bytes() == whole


def test_an_unknown_name_is_said_before_anything_is_built(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'no-such'") as caught:
        build_images(["tiny", "no-such"], cache=cache_in(tmp_path), recipes=tiny_recipe())
    assert "tiny" in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_concurrent_builds_agree_and_leave_one_image(tmp_path: Path) -> None:
    builders = [builder(tmp_path, repeats=200_000) for _ in range(4)]
    paths = {process.communicate(timeout=60)[0].strip() for process in builders}
    assert [process.returncode for process in builders] == [0] * 4
    assert len(paths) == 1
    read_layout(Path(paths.pop()))
    assert len(names_in(tmp_path)) == 2


@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_build_leaves_nothing_behind(tmp_path: Path, signal_: signal.Signals) -> None:
    process = builder(tmp_path, repeats=1_500_000)
    wait_until("the layer to be written", lambda: any(tmp_path.glob("work-*/layer-0")), limit=60, interval=0.005)
    process.send_signal(signal_)
    process.communicate(timeout=30)
    assert process.returncode
    if signal_ == signal.SIGINT:
        assert not names_in(tmp_path)
    assert not list(tmp_path.glob("*.tar"))
    build_image("tiny", cache=cache_in(tmp_path), recipes=tiny_recipe())
    assert not list(tmp_path.glob("work-*"))


def test_a_copy_appears_whole_and_alone(tmp_path: Path) -> None:
    [built] = build_images(["tiny"], cache=cache_in(tmp_path / "cache"), recipes=tiny_recipe())
    path = copy_to(built, tmp_path / "deep" / "out", name="tiny")
    assert path == tmp_path / "deep" / "out" / "tiny.tar"
    assert path.read_bytes() == built.path.read_bytes()
    assert list(path.parent.iterdir()) == [path]


def test_a_cache_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BedError) as caught:
        build_image("tiny", cache=cache_in(tmp_path / "file" / "cache"), recipes=tiny_recipe())
    assert "TESTBED_CACHE" in caught.value.hint


@pytest.mark.build
def test_a_full_disk_is_explained_and_left_clean(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], check=True, timeout=10)
    try:
        noise = os.urandom(400_000).hex()
        with pytest.raises(BedError, match="no space is left"):
            build_image("tiny", cache=cache_in(tmp_path), recipes=tiny_recipe(*ENTRIES, file("big", noise)))
        assert not names_in(tmp_path)
        [built] = build_images(["tiny"], cache=cache_in(tmp_path), recipes=tiny_recipe())
        fill(tmp_path / "filler")
        with pytest.raises(BedError, match="no space is left"):
            copy_to(built, tmp_path / "out", name="tiny")
        assert not list((tmp_path / "out").iterdir())
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True, timeout=10)


def fill(path: Path) -> None:
    """Write until nothing more fits."""
    with path.open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(bytes(4096))
        except OSError:
            return
