"""What would be mounted and plugged in, and what is read from the machine; all without touching it."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed import etcfiles, firewall, network, packages, slurmconf
from testbed.cgroups import Cgroups, hierarchies
from testbed.daemons import daemons_of, find, listening_ports
from testbed.enter import exit_code
from testbed.entry import Entry
from testbed.errors import BedError, PackageError, UsageError
from testbed.generations import generation
from testbed.layout import mounts_below
from testbed.mounts import host_mounts
from testbed.plan import Plan
from testbed.processes import is_init
from testbed.roots import base_command, mirror_of, packages_command, root_of
from testbed.state import Directories
from testbed.status import parse_sinfo

HYBRID = """\
cgroup /sys/fs/cgroup/cpuset cgroup rw,relatime,cpuset 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
cgroup /sys/fs/cgroup/devices cgroup rw,relatime,devices 0 0
cgroup /sys/fs/cgroup/freezer cgroup rw,relatime,freezer 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
"""
UNIFIED = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"
STATE = Directories(state=Path("/var/lib/testbed"))
PLAN = Plan()


def described(host: str, mounts: str = HYBRID, root: str = "/", plan: Plan = PLAN) -> list[str]:
    cgroups = Cgroups(name="testbed", hierarchies=hierarchies(mounts))
    steps = host_mounts(plan.host(host), plan, STATE, cgroups, root=Path(root), hidden=("/checkout",))
    return [step.describe() for step in steps]


def test_memory_and_cpuset_are_never_touched() -> None:
    found = hierarchies(HYBRID)
    assert found.controllers == {"devices", "freezer"}
    tops = Cgroups(name="testbed", hierarchies=found).tops
    assert tops[0] == Path("/sys/fs/cgroup/unified/testbed")
    assert not any("memory" in str(top) or "cpuset" in str(top) for top in tops)


def test_a_machine_with_cgroup2_only() -> None:
    assert hierarchies(UNIFIED).controllers == frozenset()
    assert any(
        step.startswith("mount -t cgroup2 ") and step.endswith(" /sys/fs/cgroup") for step in described("n1", UNIFIED)
    )


def test_a_machine_without_cgroup2_is_refused() -> None:
    with pytest.raises(BedError, match="no cgroup2"):
        hierarchies("cgroup /sys/fs/cgroup/freezer cgroup rw,freezer 0 0\n")


def test_two_state_directories_have_two_cgroups() -> None:
    assert STATE.cgroup == "testbed"
    names = {Directories(state=Path(path)).cgroup for path in ("/var/lib/testbed", "/a", "/b")}
    assert len(names) == 3


def test_the_root_is_read_only_before_anything_is_mounted() -> None:
    for host in ("login", "n1", "outside", "switch"):
        assert described(host)[0] == "everything read-only but /var/lib/testbed"


def test_the_state_directory_is_hidden_last() -> None:
    steps = described("n1")
    sources = [index for index, step in enumerate(steps) if "--bind /var/lib/testbed" in step]
    assert steps.index("hide /checkout") > max(sources)


def test_hosts_of_another_release_have_its_root_and_see_nothing_of_the_machines() -> None:
    first, *steps, last = described("n1", root="/cache/root-trixie")
    assert first == "pivot_root /cache/root-trixie /cache/root-trixie/mnt, read-only"
    assert "mount --bind /mnt/var/lib/testbed/hosts/n1/tmp /tmp" in steps
    assert last == "umount --lazy /mnt"
    assert described("switch", root="/cache/root-trixie") == described("switch")


def test_roots_come_from_the_mirror_of_the_machine() -> None:
    said = "http://mirror.test/updates/ bookworm-updates\nhttp://mirror.test/debian/ bookworm\n"
    assert mirror_of(said) == "http://mirror.test/debian"
    with pytest.raises(PackageError, match="no mirror"):
        mirror_of("")


def test_roots_are_made_apart_and_named_after_what_is_in_them() -> None:
    machine, trixie, forky = (generation(slurm) for slurm in ("22.05", "24.11", "26.05"))
    assert root_of(machine, Path("/cache")) == Path("/")
    assert root_of(trixie, Path("/cache")).name.startswith("root-trixie-")
    base, more = base_command(forky, Path("/new"), "http://mirror.test/debian"), packages_command(Path("/new"))
    assert base[-4:] == ["forky", "/new", "http://mirror.test/debian", "/usr/share/debootstrap/scripts/sid"]
    assert "--root=/new" in more
    assert set(packages.PACKAGES) <= set(more)
    assert all({"--pdeathsig=KILL", "--kill-child"} <= set(command) for command in (base, more))


def test_an_unknown_slurm_is_refused() -> None:
    with pytest.raises(UsageError, match=r"21\.08"):
        Plan(slurm="21.08")


def test_devices_for_users_are_open_and_gpus_only_where_they_are() -> None:
    assert {"mknod -m 666 /dev/fuse c 10 229", "mknod -m 666 /dev/net/tun c 10 200"} <= set(described("n1"))
    assert not any("/dev/nvidia" in step or "ldconfig" in step for step in described("n1"))
    assert {"mknod -m 666 /dev/nvidia1 c 240 65", "mknod -m 666 /dev/nvidiactl c 240 255"} <= set(described("n4"))


def test_sites_differ_in_their_mounts() -> None:
    assert "mount --bind /var/lib/testbed/home /home" in described("n1")
    closed = described("n1", plan=Plan(noexec_tmp=True, no_nft=True, stale_home=True))
    assert "mount -t fuse /var/lib/testbed/home /home" in closed
    assert closed.index("mount -o remount,bind,noexec /tmp") > closed.index(
        "mount --bind /var/lib/testbed/hosts/n1/tmp /tmp"
    )
    assert closed.index("cp /usr/sbin/nft /usr/local/sbin/nft") < closed.index("mount --bind /dev/null /usr/sbin/nft")
    assert "mount --bind /dev/null /usr/sbin/ip" in closed


def test_links_are_made_between_namespaces() -> None:
    plan = Plan()
    assert network.link_batch(plan.host("n1"), 42) == [
        "link add ve-n1 type veth peer name eth0 netns 42",
        "link set ve-n1 master br-cluster up",
    ]
    assert network.link_batch(plan.outside, 42)[1] == "link set ve-outside master br-outside up"
    assert network.host_batch(plan.host("n2"))[1] == "addr add 10.50.0.12/24 dev eth0"


@pytest.mark.parametrize(
    ("rate", "delay", "expected"),
    [
        ("", "", ""),
        ("1gbit", "", "tbf rate 1gbit burst 4m latency 50ms"),
        ("", "2ms", "netem delay 2ms limit 100000"),
        ("1gbit", "2ms", "netem delay 2ms rate 1gbit limit 100000"),
    ],
)
def test_a_link_is_as_slow_as_asked(rate: str, delay: str, expected: str) -> None:
    assert network.qdisc(Plan(link_rate=rate, link_delay=delay)) == expected


def test_daemons_are_found_by_their_names() -> None:
    plan = Plan(hosts=2)
    assert find(plan, "slurmd:n2").host == "n2"
    assert find(plan, "slurmctld").host == "login"
    for wrong in ("slurmd", "slurmd:n3", "sshd"):
        with pytest.raises(UsageError):
            find(plan, wrong)


def test_no_daemon_runs_outside() -> None:
    assert daemons_of(Plan().outside) == ()


def test_slurmrestd_is_neither_root_nor_slurm() -> None:
    assert find(Plan(), "slurmrestd").user not in ("root", "slurm")


def test_listening_ports_are_those_in_state_listen() -> None:
    header = "  sl  local_address rem_address   st\n"
    assert listening_ports(header + "0: 00000000:1AA1 00000000:0000 0A\n1: 0100007F:1AA2 0100007F:1AA1 01\n") == {6817}


def test_nodes_are_read_from_sinfo() -> None:
    assert parse_sinfo("n1 idle\nn1 idle\nn2 down*\n") == {"n1": "idle", "n2": "down*"}
    assert parse_sinfo("slurm_load_partitions: Unable to contact slurm controller\n") == {}


def test_installed_packages_are_told_from_removed_ones() -> None:
    text = "slurmd installed 22.05.8-4\nmunge config-files 0.5\nlibc6:amd64 installed 2.36\n"
    assert packages.parse_versions(text) == {"slurmd": "22.05.8-4", "libc6": "2.36"}
    assert packages.missing(("munge", "slurmd"), packages.parse_versions(text)) == ["munge"]


def test_only_first_processes_of_this_bed_are_found() -> None:
    line = b"/usr/bin/python3\0-P\0-m\0testbed.init\0/var/lib/testbed\0n1\0"
    assert is_init(line, STATE.state)
    assert not is_init(line, Path("/var/lib/other"))
    assert not is_init(b"vi\0/var/lib/testbed\0", STATE.state)


def test_mounts_below_a_directory() -> None:
    targets = ("/", "/var/lib/testbed", "/var/lib/testbed/opt", "/var/lib/testbed2")
    info = "".join(f"3 1 8:1 / {target} rw - ext4 a rw\n" for target in targets)
    assert mounts_below(Path("/var/lib/testbed"), info) == ["/var/lib/testbed/opt"]


def test_an_entry_survives_json() -> None:
    entry = Entry(host="n1", pid=1, start_time=2, cgroups=("/a", "/b"), user="alice", cwd="/tmp")
    assert Entry.from_json(entry.to_json()) == entry


@pytest.mark.parametrize(("status", "code"), [(0, 0), (3 << 8, 3), (15, 143), (9, 137)])
def test_exit_codes_are_a_shells(status: int, code: int) -> None:
    assert exit_code(status) == code


def test_a_firewall_lets_slurm_through_and_one_range_between_compute_hosts() -> None:
    plan = Plan(hosts=2, firewall=True)
    login, compute = (firewall.rules(plan, plan.host(name)) for name in ("login", "n1"))
    assert "ip saddr 10.50.0.11-10.50.0.12 tcp dport { 6817, 6819, 6820, 60001-60500 } accept" in login
    assert "ip saddr 10.50.0.1 tcp dport 6818 accept" in compute
    assert "ip saddr 10.50.0.11-10.50.0.12 tcp dport { 6818, 60001-60500, 40000-40199 } accept" in compute
    assert firewall.rules(plan, plan.outside) == ""
    assert "SrunPortRange=60001-60500" in slurmconf.slurm_conf(plan, frozenset())
    assert "SrunPortRange" not in slurmconf.slurm_conf(Plan(hosts=2), frozenset())


def test_with_two_networks_names_lead_to_the_slow_one() -> None:
    plan = Plan(hosts=2, two_nets=True)
    assert network.fast_host_batch(plan.host("n2"))[0] == "addr add 10.60.0.12/24 dev eth1"
    assert network.qdisc(plan).startswith("tbf rate 200mbit")
    assert "10.50.0.12 n2" in etcfiles.hosts(plan)
    assert "10.60" not in etcfiles.hosts(plan)
