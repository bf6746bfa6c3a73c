"""Manifests: read and checked before a cluster is started for them.

The check is syntax, and that every document is an object with ``apiVersion`` and ``kind``. Everything else is for the
API server to say. A manifest at a URL is read by kubectl alone.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from pinnace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

STDIN = "-"
URLS = ("http://", "https://")
SUFFIXES = frozenset({".yaml", ".yml", ".json"})  # of the files that kubectl reads in a directory
REQUIRED = ("apiVersion", "kind")
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# Without tags: a value such as `=` or 2001-99-99 is a string to kubectl. libyaml, because Go's parser is made after it.
LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A manifest that can be applied. ``content`` is there if its source can be read only once."""

    source: str
    content: str | None = None

    @staticmethod
    def read(source: str | Path) -> Manifest:
        """Read and check a file, a directory of files, or ``-`` for standard input. UsageError says what is wrong."""
        source = str(source)
        if is_url(source):
            return Manifest(source=source)
        if source == STDIN:
            content = decode(sys.stdin.buffer.read(), "standard input")
            require_objects(check_documents(content, "standard input"), "standard input")
            return Manifest(source=source, content=content)
        path = Path(source)
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
            require_objects(sum(check_documents(read_file(file), str(file)) for file in files), source)
            return Manifest(source=source)
        content = read_file(path)
        require_objects(check_documents(content, source), source)
        return Manifest(source=source, content=None if path.is_file() else content)  # a pipe is empty now

    @property
    def filename(self) -> str:
        """What ``kubectl apply -f`` gets; with ``content`` on its standard input, if there is any."""
        return self.source if self.content is None else STDIN


def is_url(source: str) -> bool:
    return source.startswith(URLS)


def read_file(path: Path) -> str:
    try:
        return decode(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-16" if data.startswith(UTF16_MARKS) else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{name}, line {line}: {error.reason}: this is no text in UTF-8") from None


def require_objects(count: int, name: str) -> None:
    if not count:
        raise UsageError(f"there is no object in {name}", hint="A manifest has at least one, with apiVersion and kind.")


def check_documents(text: str, name: str) -> int:
    """Check every document of a manifest, in YAML or JSON. How many there are."""
    if text.lstrip().startswith("{"):
        try:
            return sum(_check_keys(keys, name, line) for line, keys in json_documents(text))
        except ValueError:
            pass  # it may be a mapping of YAML in braces
    try:
        return sum(_check_keys(keys, name, line) for line, keys in yaml_documents(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        last = len(text.splitlines()) or 1  # libyaml counts one more at the end
        where = f", line {min(mark.line + 1, last)}" if mark else ""
        raise UsageError(f"{name}{where}: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{name}: {error}") from None


def json_documents(text: str) -> Iterator[tuple[int, set[str] | None]]:
    """Of every value of a stream of JSON, its line and its keys; None for the keys of what is no object."""
    decoder, position = json.JSONDecoder(), 0
    while (rest := text[position:].lstrip()) != "":
        position = len(text) - len(rest)
        line = text.count("\n", 0, position) + 1
        document, position = decoder.raw_decode(text, position)
        yield line, {key for key, value in document.items() if value} if isinstance(document, dict) else None


def yaml_documents(text: str) -> Iterator[tuple[int, set[str] | None]]:
    """The same of YAML; documents without any content are left out, as kubectl does."""
    for node in yaml.compose_all(text, Loader=LOADER):
        line = node.start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            yield line, {key.value for key, value in node.value if isinstance(key, yaml.ScalarNode) and value.value}
        elif not (isinstance(node, yaml.ScalarNode) and node.value in {"", "null", "~"}):
            yield line, None


def _check_keys(keys: set[str] | None, name: str, line: int) -> int:
    if keys is None:
        raise UsageError(f"{name}, line {line}: this is no Kubernetes object")
    missing = [key for key in REQUIRED if key not in keys]
    if missing and "<<" not in keys:  # a merge key may bring them
        raise UsageError(f"{name}, line {line}: the object has no {' and no '.join(missing)}")
    return 1
