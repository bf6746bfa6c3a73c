"""pods.toml, as a cluster is started with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pinnace.errors import UsageError
from pinnace.podjobs.settings import PodJobSettings

if TYPE_CHECKING:
    from pathlib import Path


def load(directory: Path, text: str) -> PodJobSettings:
    (directory / "pods.toml").write_text(text)
    return PodJobSettings.load(directory / "pods.toml")


def test_without_a_file_all_is_as_it_is_by_default(tmp_path: Path) -> None:
    assert PodJobSettings.load(tmp_path / "pods.toml") == PodJobSettings()


@pytest.mark.parametrize("size", ["8GB", "8gb", "8G", "500", "4096M", "1T", "0"])
def test_every_size_that_sbatch_takes(tmp_path: Path, size: str) -> None:
    assert load(tmp_path, f'elastic = ["--mem={size}", "--cpus-per-task", "4"]').elastic[0] == f"--mem={size}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('elastic = ["--mem=much"]', "elastic: --mem=much cannot be read"),
        ('elastic = ["--mem=8GX"]', "elastic: --mem=8GX cannot be read"),
        ('elastic = ["--cpus-per-task=four"]', "elastic: --cpus-per-task=four cannot be read"),
        ('elastic = ["--wrap=id"]', "elastic: --wrap is not for pods"),
        ('elastic = ["--mem"]', "elastic: --mem lacks its value"),
        ("elastic = [8]", "elastic cannot be"),
        ('[priorities]\nurgent = ["--bogus"]', "urgent: --bogus is no option"),
        ('[priorities]\nurgent = "--qos=high"', "urgent cannot be"),
        ("colour = 1", "there is no setting"),
        ('max_jobs = "many"', "max_jobs cannot be"),
        ('memory = "all"', "memory cannot be"),
        ("elastic = [", "cannot be read"),
        ('[resources]\n"example.com/fpga" = 1', "resources. cannot have"),
        ('[resources]\nfpga = "fpga"', "resources. cannot have"),
        ('[devices]\n"example.com/fpga" = ["/dev/fpga0"]', "which .resources. has not"),
        ('[resources]\n"a/b" = "b"\n[devices]\n"a/b" = "/dev/b"', "devices. cannot have"),
        ('[resources]\n"a/b" = "b"\n[devices]\n"a/b" = ["/etc/b"]', "devices. cannot have"),
    ],
)
def test_what_cannot_be_used_later_is_refused_before_a_cluster_starts(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load(tmp_path, text)
