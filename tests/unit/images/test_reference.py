"""Names mean what Docker and Kubernetes think they mean."""

from __future__ import annotations

import pytest

from pinnace.errors import ImageError
from pinnace.images.reference import Reference, parse


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("busybox:1", "docker.io/library/busybox:1"),
        ("user/image", "docker.io/user/image:latest"),
        ("index.docker.io/library/x:1", "docker.io/library/x:1"),
        ("localhost/a/b:1", "localhost/a/b:1"),
        ("localhost:5000/a:1", "localhost:5000/a:1"),
        ("GHCR.io/a/b__c.d-e:V1", "ghcr.io/a/b__c.d-e:V1"),
    ],
)
def test_a_name_is_completed(text: str, meaning: str) -> None:
    name = parse(text)
    assert str(name) == meaning
    assert Reference.of_repository(name.repository, name.tag) == name
    assert ":" not in name.repository


@pytest.mark.parametrize("text", ["", "UPPER", "a/../b", "a:b:c", "/a", "a@sha256:00", "a b", "a:-"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ImageError, match="no name of an image"):
        parse(text)
