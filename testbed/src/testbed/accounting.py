"""The accounting database: made once, then copied.

To initialise MariaDB and to have slurmdbd make its tables takes several times as long as all the rest of ``up``. So
the first bed does it, stops both daemons, and keeps the data in the cache, under a key of all that went into them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from testbed import slurmconf
from testbed.daemons import mariadbd, munged, slurmdbd, start, stop
from testbed.errors import BedError
from testbed.layout import MY_CNF
from testbed.plan import USERS

if TYPE_CHECKING:
    from testbed.hosts import Hosts
    from testbed.state import Directories

__all__ = ["associations", "cached", "key", "make", "restore"]

STEP_LIMIT = 120.0
INIT_FILE = "/etc/testbed/init.sql"
# The database is made here: with forky's MariaDB, slurmdbd fails in the connection in which it would make it itself.
SQL = (
    "CREATE DATABASE IF NOT EXISTS slurm_acct_db;\n"
    "CREATE USER IF NOT EXISTS slurm@localhost IDENTIFIED VIA unix_socket;\n"
    "GRANT ALL ON slurm_acct_db.* TO slurm@localhost;\n"
)


def associations() -> tuple[tuple[str, ...], ...]:
    """The sacctmgr commands that make a cluster, its accounts, its QOS and its users."""
    add = ("sacctmgr", "--immediate", "--quiet", "add")
    cluster = f"Cluster={slurmconf.CLUSTER}"
    accounts = tuple((*add, "account", account, cluster, "Organization=bed") for account in slurmconf.ACCOUNTS)
    users = tuple(
        (*add, "user", user.name, cluster, f"Account={user.account}", "QOS=normal,high", "DefaultQOS=normal")
        for user in USERS
        if user.account
    )
    return ((*add, "cluster", slurmconf.CLUSTER), (*add, "qos", "high", "Priority=100"), *accounts, *users)


def key(versions: dict[str, str]) -> str:
    """Changes with everything that the data depend on."""
    ingredients = (sorted(versions.items()), associations(), SQL, slurmconf.my_cnf())
    return hashlib.sha256(json.dumps(ingredients).encode()).hexdigest()[:16]


def cached(directories: Directories, versions: dict[str, str]) -> Path:
    return directories.cache / f"mysql-{key(versions)}"


def data_directory(directories: Directories) -> Path:
    return directories.host("login") / "spool" / Path(slurmconf.MYSQL_DATA).relative_to("/var/spool")


def restore(cache: Path, directories: Directories) -> None:
    copy(cache, data_directory(directories))


def copy(source: Path, target: Path) -> None:
    """cp keeps owners, and holes."""
    command = ["cp", "--archive", "--no-target-directory", str(source), str(target)]
    subprocess.run(command, check=True, timeout=STEP_LIMIT)


def make(cache: Path, hosts: Hosts) -> None:
    """Make the data with the daemons of the login host, which run for this only, and put them into the cache."""
    login = hosts.plan.login
    (hosts.directories.etc / Path(INIT_FILE).relative_to("/etc")).write_text(SQL)
    on_login(
        hosts,
        ("mariadb-install-db", f"--defaults-file={MY_CNF}", "--user=mysql", "--skip-test-db"),
    )
    first = mariadbd(login, f"--init-file={INIT_FILE}")
    start((munged(login), first, slurmdbd(login)), hosts)
    for command in associations():
        on_login(hosts, command)
    for daemon in (slurmdbd(login), first, munged(login)):
        stop(daemon, hosts)
    new = cache.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    cache.parent.mkdir(parents=True, exist_ok=True)
    copy(data_directory(hosts.directories), new)
    new.rename(cache)


def on_login(hosts: Hosts, argv: tuple[str, ...]) -> None:
    command = hosts.command(argv, user="root", on="login")
    result = subprocess.run(command, capture_output=True, text=True, timeout=STEP_LIMIT, check=False)
    if result.returncode:
        raise BedError(f"{' '.join(argv)} says:\n{result.stdout}{result.stderr}")
