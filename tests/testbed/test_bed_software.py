"""The site's software in the bed, as its users find it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed.software import install

if TYPE_CHECKING:
    from testbed import Bed

PROJECT = Path(__file__).parents[2]


@pytest.mark.bed
def test_users_find_an_installed_project_on_every_host(bed: Bed, tmp_path: Path) -> None:
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "file").write_text("shared")
    install(bed, PROJECT, share=tmp_path)
    for user, host in (("alice", "login"), ("bob", "n1")):
        assert bed.run(["pinnace", "--version"], user=user, on=host).stdout.startswith("pinnace, version")
    assert bed.run(["cat", "/opt/pinnace/share/pinnace/some/file"], on="n2").stdout == "shared"
    denied = bed.run(["touch", "/opt/pinnace/bin/pinnace"], check=False)
    assert denied.returncode != 0, "the site's software is not its users' to change"
