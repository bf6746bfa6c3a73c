"""The pure functions behind the plan, /etc and the configuration of Slurm."""

from __future__ import annotations

import pytest

from testbed import accounting, etcfiles, slurmconf
from testbed.daemons import daemons_of
from testbed.errors import UsageError
from testbed.plan import USERS, Plan

ALL = frozenset({"freezer", "devices", "pids"})
NONE: frozenset[str] = frozenset()


def settings(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if not line.startswith(("NodeName", "PartitionName")))


def test_addresses_and_names_end_alike() -> None:
    plan = Plan(hosts=4)
    assert [str(host.address) for host in plan.compute] == ["10.50.0.11", "10.50.0.12", "10.50.0.13", "10.50.0.14"]
    assert str(plan.login.address) == "10.50.0.1"
    assert str(plan.login.gateway) == "10.50.0.254"
    assert plan.outside.address not in plan.login.network


@pytest.mark.parametrize(("hosts", "gpus"), [(1, [2]), (2, [2, 2]), (4, [0, 0, 2, 2])])
def test_the_last_two_hosts_have_gpus(hosts: int, gpus: list[int]) -> None:
    assert [host.gpus for host in Plan(hosts=hosts).compute] == gpus


def test_addresses_are_unique_in_the_largest_bed() -> None:
    addresses = [host.address for host in Plan(hosts=64).all]
    assert len(set(addresses)) == len(addresses)


@pytest.mark.parametrize(
    "options", [{"hosts": 0}, {"hosts": 65}, {"link_rate": "fast"}, {"link_rate": "1gbit; ls"}, {"link_delay": "5"}]
)
def test_an_impossible_plan_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Plan(**options)  # type: ignore[arg-type]


def test_a_plan_survives_json() -> None:
    plan = Plan(hosts=2, link_rate="1gbit", fast=True, cgroups=False)
    assert Plan.from_json(plan.as_json()) == plan


def test_an_unknown_host_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        Plan(hosts=1).host("n2")
    assert "login, n1, outside" in caught.value.hint


def test_subordinate_ids_are_disjoint_and_only_for_some() -> None:
    ranges = {
        name: range(int(start), int(start) + int(count)) for name, start, count in map(split, lines(etcfiles.subids()))
    }
    assert set(ranges) == {"alice", "bob", str(USERS[-1].uid)}
    assert not set(ranges["alice"]) & set(ranges["bob"])


def test_the_machines_users_stay_but_for_those_that_clash() -> None:
    clash = f"ci:x:{USERS[0].uid}:{USERS[0].uid}::/home/ci:/bin/sh"
    machine = f"root:x:0:0:root:/root:/bin/bash\nslurm:x:900:900::/:/bin/false\n{clash}\n"
    users = {row[0]: row for row in map(split, lines(etcfiles.passwd(machine)))}
    assert users["root"][2] == "0"
    assert users["slurm"][2] == "64030"
    assert "ci" not in users, "alice has this uid"
    assert users["alice"][5] == "/home/alice"


def test_a_directory_service_knows_who_is_not_in_passwd() -> None:
    assert "erin.doe" not in etcfiles.passwd("")
    assert etcfiles.by_nss() == f"erin.doe:x:{USERS[-1].uid}:{USERS[-1].uid}::/home/erin.doe:/bin/tcsh\n"
    assert etcfiles.nsswitch("# a\npasswd: files\ngroup: files\n") == "# a\npasswd: files extrausers\ngroup: files\n"


def test_a_group_keeps_its_members() -> None:
    assert "adm:x:4:root,ci" in lines(etcfiles.group("adm:x:4:root,ci\n"))


def test_people_share_groups() -> None:
    text = lines(etcfiles.group("project:x:900:ci\nother:x:64041:ci\n"))
    assert text[-2:] == ["project:x:64040:alice,bob,carol", "survey:x:64041:alice"]
    assert not [line for line in text if line.endswith(":ci")], "they have the bed's names and ids"


def test_nobody_has_a_password() -> None:
    assert {row[1] for row in map(split, lines(etcfiles.shadow()))} == {"*"}


def test_every_linked_host_has_a_name() -> None:
    text = etcfiles.hosts(Plan(hosts=1))
    assert lines(text)[2:] == ["10.50.0.1 login", "10.50.0.11 n1", "198.51.100.10 outside"]


def test_fast_changes_the_scheduler_and_nothing_else() -> None:
    usual, fast = (settings(slurmconf.slurm_conf(Plan(fast=value), ALL)) for value in (False, True))
    assert "batch_sched_delay=0" in fast.pop("SchedulerParameters")
    assert usual == fast


def test_cgroups_are_used_where_they_are() -> None:
    conf = settings(slurmconf.slurm_conf(Plan(), ALL))
    assert (conf["ProctrackType"], conf["TaskPlugin"], conf["PrologFlags"]) == (
        "proctrack/cgroup",
        "task/cgroup",
        "Contain",
    )
    assert settings(slurmconf.cgroup_conf(Plan(), ALL))["ConstrainDevices"] == "yes"


def test_slurm_does_without_cgroups() -> None:
    conf = settings(slurmconf.slurm_conf(Plan(), NONE))
    assert (conf["ProctrackType"], conf["TaskPlugin"]) == ("proctrack/linuxproc", "task/none")
    assert "PrologFlags" not in conf
    assert settings(slurmconf.cgroup_conf(Plan(), NONE))["ConstrainDevices"] == "no"


def test_sites_differ_by_what_their_flags_say() -> None:
    usual, none = (
        settings(slurmconf.slurm_conf(Plan(), ALL)),
        settings(slurmconf.slurm_conf(Plan(accounting=False), ALL)),
    )
    assert usual.keys() - none.keys() >= {"AccountingStorageType", "AccountingStorageEnforce"}
    assert [daemon.name for daemon in daemons_of(Plan().login, accounting=False)] == ["munged", "slurmctld"]
    assert settings(slurmconf.slurm_conf(Plan(job_submit=True), NONE))["JobSubmitPlugins"] == "lua"
    for slurm, name in (("22.05", "JobContainerType"), ("26.05", "NamespaceType")):
        private = settings(slurmconf.slurm_conf(Plan(private_tmp=True, slurm=slurm), NONE))
        assert (private["PrologFlags"], private[name].partition("/")[2]) == ("Contain", "tmpfs")
    assert "StartTime=now+40minutes" in slurmconf.reservation_command(Plan(maintenance=40))
    assert Plan(memlock="64K", nofile=1024).limits == {"RLIMIT_MEMLOCK": 65536, "RLIMIT_NOFILE": 1024}


def test_what_slurm_has_dropped_is_not_in_its_configuration() -> None:
    assert "CgroupAutomount" in settings(slurmconf.cgroup_conf(Plan(slurm="22.05"), ALL))
    assert "CgroupAutomount" not in settings(slurmconf.cgroup_conf(Plan(slurm="24.11"), ALL))


def test_gpus_are_in_the_nodes_the_partition_and_gres_conf() -> None:
    plan = Plan(hosts=3)
    nodes = slurmconf.node_lines(plan)
    assert ["Gres=" in line for line in nodes] == [False, True, True]
    assert "Gres=gpu:2,fpga:2 " in nodes[1]
    assert "Gres=gpu:tesla:2,fpga:2 " in nodes[2]
    assert any(line.startswith("PartitionName=gpu Nodes=n2,n3 ") for line in slurmconf.partition_lines(plan))
    assert slurmconf.gres_conf(plan).count("NodeName=n2 Name=gpu File=/dev/nvidia") == 2
    assert slurmconf.gres_conf(plan).count("NodeName=n3 Name=gpu Type=tesla File=/dev/nvidia") == 2


def test_associations_are_for_the_users_that_have_an_account() -> None:
    users = {command[5] for command in accounting.associations() if command[4] == "user"}
    assert users == {user.name for user in USERS if user.account} == {"alice", "bob", "carol", "erin.doe"}


def test_the_cache_of_the_database_depends_on_the_versions() -> None:
    assert accounting.key({"slurmdbd": "1"}) != accounting.key({"slurmdbd": "2"})
    assert accounting.key({"a": "1", "b": "2"}) == accounting.key({"b": "2", "a": "1"})


def lines(text: str) -> list[str]:
    return text.splitlines()


def split(line: str) -> list[str]:
    return line.split(":")
