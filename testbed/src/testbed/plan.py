"""What a bed consists of: hosts, addresses and users. Pure data; nothing here touches the machine."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from testbed.errors import UsageError
from testbed.generations import DEFAULT, Generation, generation

__all__ = ["GROUPS", "MAX_HOSTS", "SYSTEM_USERS", "USERS", "Group", "Host", "Plan", "Role", "User"]

CLUSTER_NETWORK = IPv4Network("10.50.0.0/24")
FAST_NETWORK = IPv4Network("10.60.0.0/24")  # of a bed with two; hosts have the same last byte in both
OUTSIDE_NETWORK = IPv4Network("198.51.100.0/24")  # TEST-NET-2 of RFC 5737: nobody's real addresses
FIRST_COMPUTE = 10  # n1 is .11, so that addresses and names end alike
GATEWAY = 254
MAX_HOSTS = 64
GPU_HOSTS = 2
GPUS_PER_HOST = 2
GPU_TYPE = "tesla"  # of the last host's; that of the others' have none
RATE = re.compile(r"\d+(\.\d+)?[kmg]?bit")
SIZE = re.compile(r"(\d+)([KMG]?)")
DELAY = re.compile(r"\d+(\.\d+)?(us|ms|s)")


class Role(StrEnum):
    """What a host is there for."""

    SWITCH = "switch"
    LOGIN = "login"
    COMPUTE = "compute"
    OUTSIDE = "outside"


@dataclass(frozen=True, kw_only=True)
class User:
    """An account inside the bed. ``subids`` is the first of 65536 subordinate ids, ``account`` that of Slurm.

    One of a directory service (``by_nss``), such as LDAP, is known to NSS and not in /etc/passwd; /etc/subuid has its
    number instead of its name, its home is a symbolic link, and its shell is tcsh.
    """

    name: str
    uid: int
    home: str = "/nonexistent"
    shell: str = "/usr/sbin/nologin"
    subids: int | None = None
    account: str | None = None
    by_nss: bool = False


def person(name: str, uid: int, *, subids: int | None = None, account: str | None = None, by_nss: bool = False) -> User:
    shell = "/bin/tcsh" if by_nss else "/bin/bash"
    return User(name=name, uid=uid, home=f"/home/{name}", shell=shell, subids=subids, account=account, by_nss=by_nss)


# All beds of a machine share the kernel's limits per user (such as inotify instances), which two sites do not: one that
# runs beside others can have users of its own.
FIRST_UID = int(os.environ.get("TESTBED_FIRST_UID", "2001"))
USERS = (
    person("alice", FIRST_UID, subids=200_000, account="research"),
    person("bob", FIRST_UID + 1, subids=300_000, account="research"),
    person("carol", FIRST_UID + 2, account="research"),  # a site without /etc/subuid
    person("dave", FIRST_UID + 3),  # a system account that Slurm does not know
    person("erin.doe", FIRST_UID + 4, subids=400_000, account="research", by_nss=True),
)


@dataclass(frozen=True, kw_only=True)
class Group:
    """A group of people with a directory that is closed to everybody else, on the shared file system."""

    name: str
    gid: int
    members: tuple[str, ...]

    @property
    def directory(self) -> str:
        """Its path below /home."""
        return f"groups/{self.name}"


GROUPS = (
    Group(name="project", gid=64040, members=("alice", "bob", "carol")),
    Group(name="survey", gid=64041, members=("alice",)),
)

# Fixed ids, whatever the machine's packages chose: the cached database must belong to the same user tomorrow.
SYSTEM_USERS = (
    User(name="slurm", uid=64030),
    User(name="munge", uid=64031),
    User(name="mysql", uid=64032),
    User(name="slurmrestd", uid=64033),
)


@dataclass(frozen=True, kw_only=True)
class Host:
    """One host: a set of namespaces with a name, an address and perhaps fake GPUs and a fake InfiniBand adapter."""

    name: str
    role: Role
    address: IPv4Address
    network: IPv4Network
    gpus: int = 0
    gpu_type: str = ""
    infiniband: bool = False

    @property
    def gateway(self) -> IPv4Address:
        return self.network[GATEWAY]

    @property
    def port(self) -> str:
        """The name of the switch's end of this host's link."""
        return f"ve-{self.name}"

    @property
    def fast_port(self) -> str:
        """The same of its link to the fast network, in a bed with two."""
        return f"vf-{self.name}"

    @property
    def fast_address(self) -> IPv4Address:
        return FAST_NETWORK[int(self.address) - int(self.network.network_address)]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of ``testbed up`` and everything that follows from them."""

    hosts: int = 4
    link_rate: str = ""
    link_delay: str = ""
    fast: bool = False
    cgroups: bool = True
    own_processors: bool = False  # each compute host has one of the machine's, in turn
    firewall: bool = False  # hosts reach each other on few ports (see ``firewall``)
    two_nets: bool = False  # hosts have a second, fast network; their names lead to the first, slow one
    slurm: str = DEFAULT
    accounting: bool = True
    private_tmp: bool = False  # every job has a /tmp of its own
    noexec_tmp: bool = False  # nothing in /tmp can be executed
    no_nft: bool = False  # nft is in /usr/local/sbin alone, where nobody but administrators looks; there is no ip
    stale_home: bool = False  # hosts cache what they know of homes (see ``stale_home``)
    name_life: int = 60  # seconds for which they believe a name there, also one that was not: acdirmax of nfs(5)
    job_submit: bool = False  # a plugin of the site's demands an account, and changes what was asked for
    maintenance: int = 0  # minutes until all hosts are reserved for the administrators
    memlock: str = ""  # the limits of all processes: bytes of locked memory, such as 64K
    nofile: int = 0  # open files

    def __post_init__(self) -> None:
        generation(self.slurm)
        if self.memlock and not SIZE.fullmatch(self.memlock):
            raise UsageError(f"{self.memlock!r} is no size.", hint="For example: 64K, 8M.")
        if self.maintenance < 0 or self.nofile < 0:
            raise UsageError("Minutes and numbers of files are not negative.")
        if not 1 <= self.hosts <= MAX_HOSTS:
            raise UsageError(f"A bed has 1 to {MAX_HOSTS} compute hosts, not {self.hosts}.")
        if self.link_rate and not RATE.fullmatch(self.link_rate):
            raise UsageError(f"{self.link_rate!r} is no rate.", hint="For example: 10gbit, 100mbit.")
        if self.link_delay and not DELAY.fullmatch(self.link_delay):
            raise UsageError(f"{self.link_delay!r} is no delay.", hint="For example: 50us, 2ms.")

    @property
    def generation(self) -> Generation:
        return generation(self.slurm)

    @property
    def limits(self) -> dict[str, int]:
        """The limits of all processes of the hosts, by the names of the resource module."""
        found = SIZE.fullmatch(self.memlock)
        size = {"RLIMIT_MEMLOCK": int(found[1]) * 1024 ** " KMG".index(found[2] or " ")} if found else {}
        return size | ({"RLIMIT_NOFILE": self.nofile} if self.nofile else {})

    @property
    def compute(self) -> tuple[Host, ...]:
        """n1 to nN; the last two have the GPUs."""
        return tuple(
            Host(
                name=f"n{number}",
                role=Role.COMPUTE,
                address=CLUSTER_NETWORK[FIRST_COMPUTE + number],
                network=CLUSTER_NETWORK,
                gpus=GPUS_PER_HOST if number > self.hosts - GPU_HOSTS else 0,
                gpu_type=GPU_TYPE if number == self.hosts else "",
                infiniband=number == self.hosts,
            )
            for number in range(1, self.hosts + 1)
        )

    @property
    def login(self) -> Host:
        return Host(name="login", role=Role.LOGIN, address=CLUSTER_NETWORK[1], network=CLUSTER_NETWORK)

    @property
    def outside(self) -> Host:
        return Host(name="outside", role=Role.OUTSIDE, address=OUTSIDE_NETWORK[10], network=OUTSIDE_NETWORK)

    @property
    def switch(self) -> Host:
        return Host(name="switch", role=Role.SWITCH, address=CLUSTER_NETWORK[GATEWAY], network=CLUSTER_NETWORK)

    @property
    def linked(self) -> tuple[Host, ...]:
        """Every host that a user can be on; each has a link to the switch."""
        return (self.login, *self.compute, self.outside)

    @property
    def all(self) -> tuple[Host, ...]:
        return (self.switch, *self.linked)

    def host(self, name: str) -> Host:
        for host in self.all:
            if host.name == name:
                return host
        raise UsageError(
            f"The bed has no host {name!r}.", hint="It has: " + ", ".join(host.name for host in self.linked) + "."
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        return cls(**{field.name: data[field.name] for field in fields(cls)})
