"""``testbed image``, as the user types it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from support.image_samples import ENTRIES
from testbed.errors import UsageError
from testbed.images import RECIPES
from testbed.images.cli import image
from testbed.images.oci import Command
from testbed.images.recipes import LayerRecipe, Recipe

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, and one image more, which needs no package."""
    monkeypatch.setenv("TESTBED_CACHE", str(tmp_path / "cache"))
    tiny = Recipe(name="tiny", layers=(LayerRecipe(entries=ENTRIES),), command=Command(cmd=("true",)))
    monkeypatch.setitem(RECIPES, "tiny", tiny)
    return tmp_path / "cache" / "images"


def invoke(*words: str) -> Result:
    return CliRunner().invoke(image, words)


@pytest.mark.usefixtures("cache")
def test_list_shows_what_is_missing_and_what_is_built() -> None:
    before = {row["name"]: row for row in json.loads(invoke("list", "-o", "json").stdout)}
    assert set(before) == set(RECIPES)
    assert {row["state"] for row in before.values()} == {"missing"}
    assert before["tiny"]["digest"] is None
    assert invoke("build", "tiny").exit_code == 0
    [row] = [row for row in json.loads(invoke("list", "-o", "json").stdout) if row["name"] == "tiny"]
    assert row["state"] == "built"
    assert row["reference"] == "localhost/pinnace-test/tiny:1"
    assert row["digest"].startswith("sha256:")
    assert row["size"] > 1000


@pytest.mark.usefixtures("cache")
def test_list_is_a_table_for_people() -> None:
    lines = invoke("list").stdout.splitlines()
    assert lines[0].split() == ["NAME", "STATE", "MiB", "DIGEST", "REFERENCE"]
    assert len(lines) == len(RECIPES) + 1


def test_build_prints_the_path(cache: Path) -> None:
    result = invoke("build", "tiny")
    assert result.stdout.strip() == str(next(cache.glob("tiny-*.tar")))


@pytest.mark.usefixtures("cache")
def test_build_copies_to_a_directory(tmp_path: Path) -> None:
    assert invoke("build", "tiny", "--output", str(tmp_path / "out")).stdout.strip() == str(tmp_path / "out/tiny.tar")
    assert (tmp_path / "out/tiny.tar").is_file()


@pytest.mark.usefixtures("cache")
def test_an_unknown_name_is_an_error_that_lists_the_known() -> None:
    result = invoke("build", "tiny", "no-such")
    assert result.exit_code
    assert isinstance(result.exception, UsageError)
    assert "busybox" in result.exception.hint


@pytest.mark.usefixtures("cache")
def test_names_or_all() -> None:
    assert invoke("build").exit_code == 2
    assert invoke("build", "--all", "tiny").exit_code == 2
