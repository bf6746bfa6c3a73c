"""Lay out the files of a bed below its state directory, and take them away again."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from testbed import driver, etcfiles, slurmconf
from testbed.errors import BedError
from testbed.plan import GROUPS, SYSTEM_USERS, USERS, Host, Plan
from testbed.roots import root_of

if TYPE_CHECKING:
    from testbed.state import Directories

__all__ = ["EXTRAUSERS", "MY_CNF", "lay_out", "remove"]

MY_CNF = "/etc/testbed/my.cnf"
EXTRAUSERS = "/etc/extrausers/passwd"  # libnss-extrausers looks for it in /var/lib/extrausers
IDS = {user.name: user.uid for user in (*SYSTEM_USERS, *USERS)}


def write(path: Path, content: str | bytes, *, mode: int = 0o644, owner: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    if owner:
        os.chown(path, IDS[owner], IDS[owner])


def lay_out(plan: Plan, directories: Directories, controllers: frozenset[str]) -> None:
    write_etc(plan, directories, controllers)
    (directories.opt / "pinnace").mkdir(parents=True)
    for user in USERS:
        home = directories.home / user.name
        if user.by_nss:
            home.parent.mkdir(parents=True, exist_ok=True)
            home.symlink_to(f"people/{user.name}")
            home = home.resolve()
        write(home / ".profile", etcfiles.profile(), owner=user.name)
        os.chown(home, user.uid, user.uid)
        home.chmod(0o700)
    for group in GROUPS:
        directory = directories.home / group.directory
        directory.mkdir(parents=True)
        os.chown(directory, 0, group.gid)
        directory.chmod(0o2770)
    for host in plan.linked:
        lay_out_host(host, directories.host(host.name))
        if host.gpus:
            driver.install(host, directories.host(host.name), directories.cache)
    directories.host(plan.switch.name).mkdir()
    jwt_key = directories.host(plan.login.name) / "spool" / Path(slurmconf.JWT_KEY).relative_to("/var/spool")
    write(jwt_key, secrets.token_bytes(32), mode=0o600, owner="slurm")


def write_etc(plan: Plan, directories: Directories, controllers: frozenset[str]) -> None:
    etc, below = directories.etc, root_of(plan.generation, directories.cache) / "etc"
    write(etc / "passwd", etcfiles.passwd((below / "passwd").read_text()))
    write(etc / "group", etcfiles.group((below / "group").read_text()))
    write(etc / "shadow", etcfiles.shadow(), mode=0o600)
    write(etc / Path(EXTRAUSERS).relative_to("/etc"), etcfiles.by_nss())
    write(etc / "nsswitch.conf", etcfiles.nsswitch((below / "nsswitch.conf").read_text()))
    write(etc / "subuid", etcfiles.subids())
    write(etc / "subgid", etcfiles.subids())
    write(etc / "hosts", etcfiles.hosts(plan))
    write(etc / "resolv.conf", etcfiles.resolv_conf())
    write(etc / "slurm/slurm.conf", slurmconf.slurm_conf(plan, controllers))
    write(etc / "slurm/gres.conf", slurmconf.gres_conf(plan))
    write(etc / Path(slurmconf.TASK_PROLOG).relative_to("/etc"), driver.task_prolog(), mode=0o755)
    write(etc / "slurm/cgroup.conf", slurmconf.cgroup_conf(plan, controllers))
    write(etc / "slurm/slurmdbd.conf", slurmconf.slurmdbd_conf(plan), mode=0o600, owner="slurm")
    write(etc / "munge/munge.key", secrets.token_bytes(128), mode=0o400, owner="munge")
    os.chown(etc / "munge", IDS["munge"], IDS["munge"])
    (etc / "munge").chmod(0o700)
    write(etc / Path(MY_CNF).relative_to("/etc"), slurmconf.my_cnf())
    if plan.private_tmp:
        write(etc / "slurm" / slurmconf.PRIVATE_TMP_FILE, slurmconf.private_tmp_conf())
    if plan.job_submit:
        write(etc / "slurm/job_submit.lua", slurmconf.job_submit_lua())
    for name in ("slurm", "munge"):  # instead of the machine's directories, not merged with them
        os.setxattr(etc / name, "trusted.overlay.opaque", b"y")


def lay_out_host(host: Host, own: Path) -> None:
    overlays = ("etc", "opt", "usr/local/bin", "usr/local/sbin")
    for name in (*overlays, *(f"{name}.work" for name in overlays), "log", "spool"):
        (own / name).mkdir(parents=True)
    for name in ("tmp", "var-tmp"):
        (own / name).mkdir()
        (own / name).chmod(0o1777)
    write(own / "etc/hostname", f"{host.name}\n")


def mounts_below(path: Path, mountinfo: str) -> list[str]:
    """The mount points of the machine below a directory, from the text of /proc/self/mountinfo."""
    return [target for target in (line.split()[4] for line in mountinfo.splitlines()) if target.startswith(f"{path}/")]


def remove(directories: Directories) -> None:
    """Remove everything but the lock. Somebody's mount would be emptied with it: then rather nothing."""
    if mounts := mounts_below(directories.state, Path("/proc/self/mountinfo").read_text()):
        raise BedError(
            f"Something is mounted below {directories.state}, and would be lost: {' '.join(mounts)}.",
            hint=f"umount {' '.join(mounts)}, then testbed clean",
        )
    if directories.state.exists():
        for path in directories.state.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path != directories.lock:
                path.unlink()
