"""Defaults that a site's administrators and users write: ``pinnace.toml``.

    partition = "main"                        # SBATCH_PARTITION; likewise account, qos, time
    memory = "3G"                             # of each node; "none" where the site gives whole nodes
    ports = "40000-40199"                     # that the firewall lets through between nodes
    interface = "ib0"                         # or listen = "10.1.0.0/16"
    access = "auto"                           # of the API from login nodes: "direct", "slurm", or tried
    scratch = "/local"                        # on the nodes' own disks
    home = "/project/$USER/pinnace"           # if homes are not shared or too small
    image_cache = "0"                         # keep no unpacked images
    release_mirror = "https://mirror.site.org"

    [pods]                                    # what pods.toml may say (see podjobs.settings)
    memory = "none"

Each setting is the default of an environment variable, which command lines override. The user's file goes before
/etc/pinnace.toml, and that before the one beside the installation.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import tomllib
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from pinnace import ownership
from pinnace.cluster.launching import NO_MEMORY
from pinnace.components.store import site_root
from pinnace.errors import PinnaceError, UsageError
from pinnace.network.listening import INTERFACE, PortRange
from pinnace.podjobs.settings import PodJobSettings
from pinnace.slurm.sizes import parse_mebibytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping

NAME = "pinnace.toml"
SITE = Path("/etc") / NAME
PODS = "pods"
HOME = "home"
AUTO, DIRECT, THROUGH_SLURM = "auto", "direct", "slurm"
ACCESS = (AUTO, DIRECT, THROUGH_SLURM)
WORD = re.compile(r"[A-Za-z0-9_.,:+-]+")


def _one_of(*words: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        if text not in words:
            raise ValueError(f"one of {', '.join(words)}")

    return check


def _matching(pattern: re.Pattern[str], what: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        if not pattern.fullmatch(text):
            raise ValueError(what)

    return check


def _memory(text: str) -> None:
    if text != NO_MEMORY:
        parse_mebibytes(text)


def _directory(text: str) -> None:
    if not text.startswith(("/", "$HOME")):
        raise ValueError("the path of a directory, from the root")


_word = _matching(WORD, "a word, as Slurm takes it")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A key of the file, the variable that it is the default of, and what its value has to be (ValueError if not)."""

    key: str
    variable: str
    check: Callable[[str], object]
    instead: str = ""  # the key that says the same in another way: a file that has one of them hides both below it


SETTINGS = (
    Setting(key="partition", variable="SBATCH_PARTITION", check=_word),
    Setting(key="account", variable="SBATCH_ACCOUNT", check=_word),
    Setting(key="qos", variable="SBATCH_QOS", check=_word),
    Setting(key="time", variable="SBATCH_TIMELIMIT", check=_word),
    Setting(key="memory", variable="PINNACE_MEMORY", check=_memory),
    Setting(key="ports", variable="PINNACE_PORTS", check=PortRange.parse),
    Setting(key="listen", variable="PINNACE_LISTEN", check=IPv4Network, instead="interface"),
    Setting(
        key="interface", variable="PINNACE_INTERFACE", check=_matching(INTERFACE, "a network device"), instead="listen"
    ),
    Setting(key="access", variable="PINNACE_ACCESS", check=_one_of(*ACCESS)),
    Setting(key="scratch", variable="PINNACE_SCRATCH", check=_directory),
    Setting(key=HOME, variable="PINNACE_HOME", check=_directory),
    Setting(key="image_cache", variable="PINNACE_IMAGE_CACHE", check=str),
    Setting(
        key="release_mirror", variable="PINNACE_RELEASE_MIRROR", check=_matching(re.compile("https://.+"), "https://…")
    ),
)
BY_KEY = {setting.key: setting for setting in SETTINGS}


@dataclass(frozen=True, kw_only=True)
class Effective:
    """A setting's value and where it comes from; both are empty if nobody has said anything."""

    setting: Setting
    value: str = ""
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class ConfigurationFile:
    """One file, read and checked."""

    path: Path
    values: dict[str, str]
    pods: dict[str, Any]


def files(environment: Mapping[str, str]) -> list[Path]:
    """Where settings may be, those that go first at the beginning."""
    config = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return [Path(config) / NAME, SITE, site_root().parent / NAME]


def read(path: Path) -> ConfigurationFile | None:
    """A file; None if there is none."""
    data = _load(path)
    if data is None:
        return None
    pods = data.pop(PODS, {})
    if not isinstance(pods, dict):
        raise UsageError(f"{path}: {PODS} is a table", hint=f"Write [{PODS}], and its settings below.")
    try:
        PodJobSettings.from_json(pods)
    except UsageError as error:
        raise UsageError(f"{path}: [{PODS}]: {error.message}", hint=error.hint) from error
    return ConfigurationFile(
        path=path, values={key: _checked(path, key, value) for key, value in data.items()}, pods=pods
    )


def _load(path: Path) -> dict[str, Any] | None:
    """What a file says. It decides where jobs run and what is fetched, so others must not be able to change it."""
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    ownership.require(path, "a file with settings of pinnace", "remove it")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} cannot be read: {error}", hint='It has to be TOML: `key = "value"`.') from error


def _checked(path: Path, key: str, value: object) -> str:
    if key not in BY_KEY:
        raise UsageError(f"{path}: there is no setting {key!r}", hint=f"There are: {', '.join([*BY_KEY, PODS])}.")
    if not isinstance(value, str):
        raise UsageError(f"{path}: {key} cannot be {value!r}", hint=f'Write it as text: {key} = "…".')
    try:
        BY_KEY[key].check(value)
    except ValueError as error:
        raise UsageError(f"{path}: {key} cannot be {value!r}: {error}") from error
    return value


def read_all(environment: Mapping[str, str]) -> list[ConfigurationFile]:
    return [file for path in files(environment) if (file := read(path))]


def effective(environment: Mapping[str, str], found: list[ConfigurationFile]) -> list[Effective]:
    """All settings as they hold: from the environment, or from the first file that has them."""
    return [_effective(setting, environment, found) for setting in SETTINGS]


def _effective(setting: Setting, environment: Mapping[str, str], found: list[ConfigurationFile]) -> Effective:
    if value := environment.get(setting.variable):
        return Effective(setting=setting, value=value, source=f"${setting.variable}")
    if setting.instead and environment.get(BY_KEY[setting.instead].variable):
        return Effective(setting=setting)
    for file in found:
        if value := file.values.get(setting.key):
            return Effective(setting=setting, value=_expanded(value, environment, file.path), source=str(file.path))
        if setting.instead in file.values:
            break
    return Effective(setting=setting)


def _expanded(value: str, environment: Mapping[str, str], path: Path) -> str:
    """A value in which $USER and $HOME stand for the user's own, which cron and services do not have in variables."""
    known = {}
    with contextlib.suppress(KeyError):  # a user whom the host does not know
        entry = pwd.getpwuid(os.getuid())
        known = {"USER": entry.pw_name, "HOME": entry.pw_dir}
    known |= {name: environment[name] for name in ("USER", "HOME") if environment.get(name)}
    expanded = Template(value).safe_substitute(known)
    if "$" in expanded:
        raise UsageError(
            f"{path}: {value!r} has a variable in it that has no value", hint="Values may have $USER and $HOME in them."
        )
    return expanded


def apply(environment: MutableMapping[str, str]) -> list[Effective]:
    """Set the variables that a file gives and the environment does not have. Everything else reads them there."""
    found = effective(environment, read_all(environment))
    environment.update({one.setting.variable: one.value for one in found if one.value})
    return found


def apply_home(environment: MutableMapping[str, str]) -> None:
    """The same for ``home`` alone, from what can be used of the files: without it nobody finds the user's clusters."""
    for path in files(environment):
        with contextlib.suppress(PinnaceError):
            value = (_load(path) or {}).get(HOME)
            file = ConfigurationFile(path=path, values={HOME: _checked(path, HOME, value)} if value else {}, pods={})
            if found := _effective(BY_KEY[HOME], environment, [file]).value:
                environment[BY_KEY[HOME].variable] = found
                return


def access(environment: Mapping[str, str]) -> str:
    """How login nodes are to reach the API: one of ``ACCESS``."""
    chosen = environment.get("PINNACE_ACCESS") or AUTO
    if chosen not in ACCESS:
        raise UsageError(f"PINNACE_ACCESS cannot be {chosen!r}", hint=f"It is one of {', '.join(ACCESS)}.")
    return chosen


def pod_settings(home: Path) -> PodJobSettings:
    """Those for pods as jobs: the user's ``pods.toml``, and for what it does not say, the files' ``[pods]``."""
    defaults: dict[str, Any] = {}
    for file in reversed(read_all(os.environ)):
        defaults |= file.pods
    return PodJobSettings.load(home / "pods.toml", defaults)
