"""The recipes as data: what can be said of them without building."""

from __future__ import annotations

import re

import pytest

from testbed.images import RECIPES
from testbed.images.entries import Kind
from testbed.images.recipes import BASE, Recipe, nginx_conf

EVERY = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


@EVERY
def test_references_are_valid_and_local(recipe: Recipe) -> None:
    assert re.fullmatch(r"localhost/pinnace(-test)?/[a-z]+:[0-9]+", recipe.reference)


@EVERY
def test_entries_are_relative_and_named_once_per_layer(recipe: Recipe) -> None:
    for layer in recipe.layers:
        paths = [entry.path for entry in layer.entries] + [program.path for program in layer.programs]
        assert len(paths) == len(set(paths))
        assert not [path for path in paths if path != path.strip("/") or ".." in path]
        assert not [path for path in paths if re.match(r"(bin|sbin|lib|lib64)/", path)]


@EVERY
def test_an_image_runs_something(recipe: Recipe) -> None:
    assert recipe.command.entrypoint or recipe.command.cmd


def test_base_has_the_accounts() -> None:
    files = {entry.path: entry.content for entry in BASE.entries if entry.kind is Kind.FILE}
    passwd = files["etc/passwd"]
    assert isinstance(passwd, bytes)
    ids = {line.split(":")[0]: line.split(":")[2] for line in passwd.decode().splitlines()}
    assert ids == {"root": "0", "daemon": "1", "www-data": "33", "user": "1000", "nobody": "65534"}


def test_nginx_listens_where_told() -> None:
    text = nginx_conf(ports=(8080, 81), user="www-data")
    assert re.findall(r"listen (\d+);", text) == ["8080", "81"]
    assert text.startswith("user www-data;\n")
    assert "user" not in nginx_conf(ports=(8080,)).splitlines()[0]
