"""Commands for clusters that run, beside a file with settings that is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def test_clusters_are_found_where_a_file_says_that_is_wrong_otherwise(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "clusters" / "mine").mkdir(parents=True)
    (tmp_path / "pinnace.toml").write_text(f'home = "{tmp_path}/elsewhere"\npartitoin = "main"\n')
    environment = {name: value for name, value in os.environ.items() if name != "PINNACE_HOME"}
    environment |= {"XDG_CONFIG_HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")}
    result = subprocess.run(
        [sys.executable, "-m", "pinnace", "down", "other"],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "there is no setting 'partitoin'" in result.stderr
    assert "Your clusters: mine." in result.stderr
