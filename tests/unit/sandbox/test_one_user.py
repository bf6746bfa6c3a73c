"""The filter with which one identity is enough, in a real user namespace."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

TRY = """
import os, sys
from pinnace.sandbox.one_user import ignore_id_changes
if sys.argv[1] == "pretend":
    ignore_id_changes()
os.chown(sys.argv[2], 33, 33)
os.setgroups([44])
os.setresgid(33, 33, 33)
os.setresuid(33, 33, 33)
print(os.getuid(), os.stat(sys.argv[2]).st_uid)
"""


def in_a_namespace(mode: str, file: object) -> subprocess.CompletedProcess[str]:
    argv = ["unshare", "--user", "--map-root-user", sys.executable, "-c", TRY, mode, str(file)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


def test_files_and_processes_of_others_become_ours(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("one") / "file"
    file.touch()
    assert in_a_namespace("pretend", file).stdout == "0 0\n"
    assert "Invalid argument" in in_a_namespace("do not", file).stderr
