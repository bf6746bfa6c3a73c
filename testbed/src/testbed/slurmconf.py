"""The configuration of Slurm and its database: pure functions of the plan.

It is a typical site's, with three things a typical site does not need: ``config_overrides``, because a host says that
it has 8 CPUs and the machine has fewer; a short ``SlurmdTimeout``, because tests wait for a dead host to be DOWN; and
memory limits enforced by sampling (``OverMemoryKill``) rather than by the memory controller, whose cgroups belong to
the machine.

Slurm tracks the processes of a job with the freezer and hides GPUs with the devices controller where the kernel has
these as cgroup v1. Where it has not, or with ``--no-cgroups``, Slurm follows the parents of processes
(proctrack/linuxproc) and hides nothing: the cgroup/v2 plugin of 22.05 wants a systemd in every host.
"""

from __future__ import annotations

from testbed.driver import gpu_path
from testbed.plan import USERS, Host, Plan

__all__ = [
    "ACCOUNTS",
    "CLUSTER",
    "CPUS",
    "DBD_PORT",
    "JWT_KEY",
    "MEMORY_MB",
    "REST_PORT",
    "REST_SOCKET",
    "SRUN_PORTS",
    "cgroup_conf",
    "fpga_path",
    "gres_conf",
    "job_submit_lua",
    "my_cnf",
    "private_tmp_conf",
    "reservation_command",
    "slurm_conf",
    "slurmdbd_conf",
]

CLUSTER = "bed"
CPUS = 8
MEMORY_MB = 8000
TMP_MB = 20_000
CTLD_PORT = 6817
SLURMD_PORT = 6818
DBD_PORT = 6819
REST_PORT = 6820
SRUN_PORTS = "60001-60500"  # where srun listens, in a bed with a firewall
REST_SOCKET = "/run/slurmrestd/slurmrestd.sock"
JWT_KEY = "/var/spool/slurmctld/jwt_hs256.key"
MYSQL_SOCKET = "/run/mysqld/mysqld.sock"
MYSQL_DATA = "/var/spool/mysql"
ACCOUNTS = tuple(sorted({user.account for user in USERS if user.account}))
FPGAS = 2  # of each host with GPUs
SPOOL = "/var/spool/slurmd"
PRIVATE_TMP_FILE = "job_container.conf"
TASK_PROLOG = "/etc/slurm/task-prolog"
FAST = "batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1"


def fpga_path(number: int) -> str:
    return f"/dev/fpga{number}"


def conf(settings: dict[str, object]) -> str:
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def slurm_conf(plan: Plan, controllers: frozenset[str]) -> str:
    """``controllers`` are the cgroup v1 controllers that the hosts have."""
    freezer = "freezer" in controllers
    settings: dict[str, object] = {
        "ClusterName": CLUSTER,
        "SlurmctldHost": f"{plan.login.name}({plan.login.address})",
        "SlurmctldPort": CTLD_PORT,
        "SlurmdPort": SLURMD_PORT,
        "SlurmUser": "slurm",
        "AuthType": "auth/munge",
        "AuthAltTypes": "auth/jwt",
        "AuthAltParameters": f"jwt_key={JWT_KEY}",
        "StateSaveLocation": "/var/spool/slurmctld",
        "SlurmdSpoolDir": SPOOL,
        "SlurmctldPidFile": "/run/slurm/slurmctld.pid",
        "SlurmdPidFile": "/run/slurm/slurmd.pid",
        "SlurmctldLogFile": "/var/log/slurm/slurmctld.log",
        "SlurmdLogFile": "/var/log/slurm/slurmd.log",
        "TmpFS": "/tmp",  # noqa: S108 - the hosts' own
        "ProctrackType": "proctrack/cgroup" if freezer else "proctrack/linuxproc",
        "TaskPlugin": "task/cgroup" if "devices" in controllers else "task/none",
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": 1,
        "JobAcctGatherParams": "OverMemoryKill",
        "GresTypes": "gpu,fpga",
        "TaskProlog": TASK_PROLOG,
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "DefMemPerCPU": 500,
        "SchedulerType": "sched/backfill",
        "PriorityType": "priority/multifactor",
        "PriorityWeightPartition": 1000,
        "PriorityWeightQOS": 1000,
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "CANCEL",
        "EnforcePartLimits": "ALL",
        "MpiDefault": "none",
        "SlurmdParameters": "config_overrides",
        "SlurmdTimeout": 10,
        "ReturnToService": 2,
    }
    if plan.accounting:
        settings |= {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": plan.login.name,
            "AccountingStorageEnforce": "associations,limits,qos",
            "AccountingStorageTRES": "gres/gpu",
        }
    if freezer or plan.private_tmp:
        settings["PrologFlags"] = "Contain"
    if plan.firewall:
        settings["SrunPortRange"] = SRUN_PORTS
    if plan.private_tmp:
        settings |= private_tmp_setting(plan)
    if plan.job_submit:
        settings["JobSubmitPlugins"] = "lua"
    if plan.fast:
        settings["SchedulerParameters"] = FAST
    return conf(settings) + "".join(node_lines(plan)) + "".join(partition_lines(plan))


def node_lines(plan: Plan) -> list[str]:
    return [
        f"NodeName={host.name} NodeAddr={host.address} CPUs={CPUS} RealMemory={MEMORY_MB} TmpDisk={TMP_MB}"
        f" Feature={'gpu' if host.gpus else 'cpu'},rack{1 + index % 2}"
        f"{f' Gres={node_gres(host)}' if host.gpus else ''} State=UNKNOWN\n"
        for index, host in enumerate(plan.compute)
    ]


def node_gres(host: Host) -> str:
    return f"gpu:{f'{host.gpu_type}:' if host.gpu_type else ''}{host.gpus},fpga:{FPGAS}"


def partition_lines(plan: Plan) -> list[str]:
    """Jobs in ``spare`` have what nobody else wants, and lose it when somebody does."""
    gpu_hosts = ",".join(host.name for host in plan.compute if host.gpus)
    common = "MaxTime=1-00:00:00 DefaultTime=01:00:00 State=UP"
    return [
        f"PartitionName=main Nodes=ALL Default=YES PriorityTier=2 PreemptMode=OFF {common}\n",
        "PartitionName=short Nodes=ALL PriorityTier=10 PreemptMode=OFF PriorityJobFactor=10 MaxTime=0:10:0 State=UP\n",
        f"PartitionName=gpu Nodes={gpu_hosts} PriorityTier=2 PreemptMode=OFF {common}\n",
        f"PartitionName=spare Nodes=ALL PriorityTier=1 {common}\n",
    ]


def gres_conf(plan: Plan) -> str:
    hosts = [host for host in plan.compute if host.gpus]
    gpus = [
        f"NodeName={host.name} Name=gpu{f' Type={host.gpu_type}' if host.gpu_type else ''} File={gpu_path(number)}\n"
        for host in hosts
        for number in range(host.gpus)
    ]
    fpgas = [f"NodeName={host.name} Name=fpga File={fpga_path(n)}\n" for host in hosts for n in range(FPGAS)]
    return "".join([*gpus, *fpgas])


def cgroup_conf(plan: Plan, controllers: frozenset[str]) -> str:
    """The plugin is named even where it does nothing: left to itself it looks for a systemd."""
    automount = {"CgroupAutomount": "no"} if plan.generation.number < (24, 11) else {}  # the only choice since
    return conf(
        {
            "CgroupPlugin": "cgroup/v1",
            **automount,
            "CgroupMountpoint": "/sys/fs/cgroup",
            "ConstrainCores": "no",
            "ConstrainRAMSpace": "no",
            "ConstrainDevices": "yes" if "devices" in controllers else "no",
        }
    )


def private_tmp_setting(plan: Plan) -> dict[str, object]:
    """The same plugin has had another name since 25.11; its file has kept its own."""
    if plan.generation.number < (25, 11):
        return {"JobContainerType": "job_container/tmpfs"}
    return {"NamespaceType": "namespace/tmpfs"}


def private_tmp_conf() -> str:
    """Of job_container/tmpfs: a /tmp and a /dev/shm for each job, which go with it."""
    return conf({"AutoBasePath": "true", "BasePath": f"{SPOOL}/private"})


def job_submit_lua() -> str:
    """As many sites have it: no job without an account, short ones into the partition for these, a limit for all."""
    return """\
function slurm_job_submit(job, partitions, uid)
   if job.account == nil then
      slurm.log_user("Please say on whose account: --account=research")
      return slurm.ERROR
   end
   if job.time_limit == slurm.NO_VAL then
      job.time_limit = 30
   end
   if job.partition == nil and job.time_limit <= 10 then
      job.partition = "short"
   end
   return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
   return slurm.SUCCESS
end
"""


def reservation_command(plan: Plan) -> list[str]:
    """All hosts for the administrators: jobs that would not have ended by then do not start."""
    start = f"StartTime=now+{plan.maintenance}minutes"
    who = ["Users=root", "Nodes=ALL", "Flags=MAINT"]
    return ["scontrol", "create", "reservation", "ReservationName=maintenance", start, "Duration=120", *who]


def slurmdbd_conf(plan: Plan) -> str:
    return conf(
        {
            "AuthType": "auth/munge",
            "AuthAltTypes": "auth/jwt",
            "AuthAltParameters": f"jwt_key={JWT_KEY}",
            "DbdHost": plan.login.name,
            "DbdPort": DBD_PORT,
            "SlurmUser": "slurm",
            "LogFile": "/var/log/slurm/slurmdbd.log",
            "PidFile": "/run/slurm/slurmdbd.pid",
            "StorageType": "accounting_storage/mysql",
            "StorageHost": "localhost",  # which means the socket
            "StorageUser": "slurm",
            "StorageLoc": "slurm_acct_db",
        }
    )


def my_cnf() -> str:
    """A small, fast database. ``skip-networking``: only slurmdbd talks to it, through the socket."""
    server = {
        "user": "mysql",
        "datadir": MYSQL_DATA,
        "socket": MYSQL_SOCKET,
        "pid-file": "/run/mysqld/mysqld.pid",
        "log-error": "/var/log/mysql/mariadbd.log",
        "innodb_buffer_pool_size": "64M",
        "innodb_log_file_size": "8M",
        "innodb_lock_wait_timeout": 900,  # slurmdbd complains below
        "innodb_flush_log_at_trx_commit": 0,  # nobody needs these data after a power cut
        "innodb_doublewrite": 0,
        "aria_log_file_size": "8M",
        "performance_schema": "OFF",
    }
    return f"[client]\nsocket={MYSQL_SOCKET}\n[mariadbd]\nskip-networking\nskip-name-resolve\n" + conf(server)
