"""Settings in files: which goes before which, and what is refused with the file's name and the key."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

import pytest

from pinnace.cluster import configuration
from pinnace.cluster.configuration import BY_KEY, apply, apply_home, effective, pod_settings, read, read_all
from pinnace.errors import UnsafePathError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is /etc/pinnace.toml at a site; there is no other file."""
    path = tmp_path / "etc" / "pinnace.toml"
    path.parent.mkdir()
    monkeypatch.setattr(configuration, "SITE", path)
    monkeypatch.setattr(configuration, "site_root", lambda: tmp_path / "opt" / "components")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return path


def values(environment: dict[str, str], site: Path) -> dict[str, tuple[str, str]]:
    environment |= {"XDG_CONFIG_HOME": str(site.parents[1] / "config")}
    found = effective(environment, read_all(environment))
    return {one.setting.key: (one.value, one.source) for one in found if one.value}


def write_own(site: Path, text: str) -> Path:
    path = site.parents[1] / "config" / "pinnace.toml"
    path.parent.mkdir()
    path.write_text(text)
    return path


def test_the_environment_goes_before_the_users_file_and_that_before_the_sites(site: Path) -> None:
    site.write_text('partition = "main"\naccount = "everybody"\nports = "40000-40199"\n')
    own = write_own(site, 'account = "mine"\npartition = "long"\n')
    assert values({"SBATCH_PARTITION": "short"}, site) == {
        "partition": ("short", "$SBATCH_PARTITION"),
        "account": ("mine", str(own)),
        "ports": ("40000-40199", str(site)),
    }


def test_the_file_beside_the_installation_comes_last(site: Path) -> None:
    beside = site.parents[1] / "opt" / "pinnace.toml"
    beside.parent.mkdir()
    beside.write_text('scratch = "/local"\nmemory = "none"\n')
    site.write_text('scratch = "/nvme/$USER"\n')
    assert values({"USER": "alice"}, site) == {"scratch": ("/nvme/alice", str(site)), "memory": ("none", str(beside))}


@pytest.mark.parametrize("environment", [{}, {"PINNACE_LISTEN": "10.1.0.0/16"}])
def test_listen_and_interface_hide_each_other(site: Path, environment: dict[str, str]) -> None:
    site.write_text('interface = "ib0"\n')
    if not environment:
        write_own(site, 'listen = "10.1.0.0/16"\n')
    assert {key: value for key, (value, _) in values(environment, site).items()} == {"listen": "10.1.0.0/16"}


def test_what_is_applied_is_what_is_missing(site: Path) -> None:
    site.write_text('partition = "main"\nports = "40000-40199"\n')
    environment = {"PINNACE_PORTS": "50000-50010"}
    apply(environment)
    assert environment == {"PINNACE_PORTS": "50000-50010", "SBATCH_PARTITION": "main"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("partition = main", "cannot be read"),
        ('partitoin = "main"', "no setting 'partitoin'"),
        ("ports = 40000", "ports cannot be 40000"),
        ('ports = "90-80"', "ports cannot be '90-80'"),
        ('listen = "10.1.0.1/16"', "listen cannot be"),
        ('interface = "ib0; rm"', "interface cannot be"),
        ('memory = "lots"', "memory cannot be"),
        ('access = "magic"', "one of auto, direct, slurm"),
        ('scratch = "here"', "scratch cannot be"),
        ('release_mirror = "http://mirror"', "release_mirror cannot be"),
        ('partition = "a b"', "partition cannot be"),
        ("pods = 1", "pods is a table"),
        ('[pods]\nmemory = "much"', r"\[pods\].*memory cannot be 'much'"),
    ],
)
def test_an_error_names_the_file_and_the_key(site: Path, text: str, message: str) -> None:
    site.write_text(text)
    with pytest.raises(UsageError, match=message) as raised:
        read(site)
    assert str(site) in raised.value.message


def test_a_file_that_others_can_change_is_refused(site: Path) -> None:
    site.write_text("")
    site.chmod(0o666)
    with pytest.raises(UnsafePathError, match="can be written by other users"):
        read(site)


def test_the_sites_settings_for_pods_are_defaults_of_the_users(site: Path, tmp_path: Path) -> None:
    site.write_text('[pods]\nmemory = "none"\nmax_jobs = 50\n')
    assert pod_settings(tmp_path).max_jobs == 50
    (tmp_path / "pods.toml").write_text("max_jobs = 7\n")
    assert (pod_settings(tmp_path).memory, pod_settings(tmp_path).max_jobs) == ("none", 7)


def test_the_documentation_names_every_setting() -> None:
    assert all(
        f"    {key} = " in (configuration.__doc__ or "") or key in {"account", "qos", "time", "listen"}
        for key in BY_KEY
    )


def test_without_variables_the_user_is_the_one_of_the_process(site: Path) -> None:
    site.write_text('scratch = "/local/$USER"\nhome = "$HOME/pinnace"\n')
    me = pwd.getpwuid(os.getuid())
    assert values({"USER": ""}, site) == {
        "scratch": (f"/local/{me.pw_name}", str(site)), "home": (f"{me.pw_dir}/pinnace", str(site))
    }  # fmt: skip


@pytest.mark.parametrize("path", ["/local/$LOGNAME", "/local/${USER", "/local/$"])
def test_a_variable_without_a_value_is_refused(site: Path, path: str) -> None:
    site.write_text(f'scratch = "{path}"\n')
    with pytest.raises(UsageError, match="a variable in it that has no value") as raised:
        apply({})
    assert str(site) in raised.value.message


@pytest.mark.parametrize("bad", ['partitoin = "x"', 'ports = "90-80"', "[pods]\nmax_jobs = 'many'", 'scratch = "/$X"'])
def test_the_home_holds_whatever_else_is_wrong(site: Path, bad: str) -> None:
    site.write_text(f'home = "/project/$USER"\npartition = "main"\n{bad}\n')
    environment = {"USER": "alice"}
    apply_home(environment)
    assert environment == {"USER": "alice", "PINNACE_HOME": "/project/alice"}
    environment = {"PINNACE_HOME": "/mine"}
    apply_home(environment)
    assert environment == {"PINNACE_HOME": "/mine"}


@pytest.mark.parametrize("own", ["home = /", "home = 7", 'home = "here"', 'home = "/$NOBODY"', 'partition = "main"'])
def test_a_home_that_cannot_be_used_is_the_next_files(site: Path, own: str) -> None:
    site.write_text('home = "/project"\n')
    write_own(site, own)
    environment = {"XDG_CONFIG_HOME": str(site.parents[1] / "config")}
    apply_home(environment)
    assert environment["PINNACE_HOME"] == "/project"
