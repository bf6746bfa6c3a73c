"""The real images, built once and unpacked where a test asks for one."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest

from support.image_samples import unpack_layout
from support.running_images import Container
from testbed.images import build_image

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="session")
def container(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Container]:
    """Give the container of an image's name; its image comes from the machine's cache, or is built there."""

    @cache
    def unpacked(name: str) -> Container:
        root = tmp_path_factory.mktemp(name)
        root.chmod(0o755)
        assert list(unpack_layout(build_image(name), root))
        return Container(root=root)

    return unpacked
