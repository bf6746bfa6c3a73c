"""Manifests are checked before a cluster is started for them; what kubectl would take is not refused."""

from __future__ import annotations

import io
import os
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from pinnace.cluster.manifest import Manifest, check_documents
from pinnace.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (POD, 1),
        (f"# a comment\n---\n{POD}---\n---\n# nothing\n---\n{POD}", 2),
        ('{"apiVersion": "v1", "kind": "Pod"}', 1),
        ('{"apiVersion": "v1", "kind": "Pod"}\n{"apiVersion": "v1", "kind": "Pod"}\n', 2),
        ("{apiVersion: v1, kind: Pod}", 1),
        (POD + "spec: {a: =, b: 2001-99-99, c: !tag x, d: 012_3}\n", 1),
        ("base: &base {apiVersion: v1, kind: Pod}\n<<: *base\n", 1),
        (POD.replace(": ", ":\t", 1), 1),
        ("%YAML 1.1\n---\n" + POD, 1),
        ("", 0),
        ("---\n# only a comment\n", 0),
    ],
)
def test_what_kubectl_takes_is_taken(text: str, count: int) -> None:
    assert check_documents(text, "a.yaml") == count


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: [", "a.yaml, line 1: "),
        (f"{POD}---\na: b: c\n", "a.yaml, line 5: mapping values are not allowed"),
        (f"{POD}---\nkind: Pod\n", "a.yaml, line 5: the object has no apiVersion"),
        ("metadata: {}\n", "a.yaml, line 1: the object has no apiVersion and no kind"),
        ("apiVersion: v1\nkind:\n", "a.yaml, line 1: the object has no kind"),
        ("#!/bin/sh\necho hello\n", "a.yaml, line 2: this is no Kubernetes object"),
        ("[1]", "a.yaml, line 1: this is no Kubernetes object"),
        ('{"apiVersion": "v1",\n "kind": "Pod"', "a.yaml, line 2: "),
        ('{"apiVersion": "v1", "kind": "Pod"}\n{"kind": "Pod"}', "a.yaml, line 2: the object has no apiVersion"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_documents(text, "a.yaml")
    assert caught.value.message.startswith(message)


def test_files_and_directories(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(POD)
    assert Manifest.read(tmp_path / "a.yaml") == Manifest(source=str(tmp_path / "a.yaml"))
    with pytest.raises(UsageError, match="there is no file"):
        Manifest.read(tmp_path / "b.yaml")
    (tmp_path / "README.md").write_text("# no manifest: [")
    (tmp_path / "empty.yml").write_text("")
    assert Manifest.read(tmp_path).filename == str(tmp_path)
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(UsageError, match=r"b\.json, line 1"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize("name", ["a.yaml", ""])
def test_a_manifest_without_any_object(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.yaml").write_text("# nothing\n")
    with pytest.raises(UsageError, match="there is no object in"):
        Manifest.read(tmp_path / name)


def test_what_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"kind: Pod\n\xff\xff")
    with pytest.raises(UsageError, match=r"a\.yaml, line 2: .* no text in UTF-8"):
        Manifest.read(tmp_path / "a.yaml")


def test_standard_input_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(POD.encode())))
    manifest = Manifest.read("-")
    assert (manifest.filename, manifest.content) == ("-", POD)
    with pytest.raises(UsageError, match="there is no object in standard input"):
        Manifest.read("-")


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.yaml")
    writer = threading.Thread(target=(tmp_path / "a.yaml").write_text, args=(POD,))
    writer.start()
    manifest = Manifest.read(tmp_path / "a.yaml")
    writer.join()
    assert (manifest.source, manifest.filename, manifest.content) == (str(tmp_path / "a.yaml"), "-", POD)


def test_a_url_is_kubectls_to_read() -> None:
    assert Manifest.read("https://example.invalid/a.yaml").filename == "https://example.invalid/a.yaml"
