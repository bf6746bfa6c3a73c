"""What ranks are given: pure functions of what a container has."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pinnace.controlplane.tasks import TASKS
from pinnace.podjobs.ranks import launcher, world
from pinnace.podjobs.ranks.container import VolumeKind, describe, host_path, layers
from pinnace.podjobs.ranks.ids import ProcessCredentials, credentials_of, node_id, swap_id, swapped_id_map
from pinnace.podjobs.ranks.rank import environment, find
from pinnace.podjobs.ranks.server import companion_argv, default_mpi, step_argv
from pinnace.sandbox.mountinfo import mount_points
from pinnace.slurm.allowed_options import parse_srun

MANY = "0 2001 1\n1 200000 65536\n"
ONE = "0 2001 1\n"
SCRATCH = Path("/tmp/pinnace-2001-x")
PODS = "/var/lib/kubelet/pods/u"
ROOT = f"{TASKS}/abc/rootfs"
NODE = f"""\
1 0 8:1 / / rw - ext4 /dev/sda rw
2 1 8:2 / /home rw - nfs server:/home rw
3 1 0:5 / /run rw - tmpfs none rw
4 1 8:1 /tmp/pinnace-2001-x/kubelet /var/lib/kubelet rw - ext4 /dev/sda rw
5 4 0:9 / {PODS}/volumes/kubernetes.io~secret/s rw - tmpfs tmpfs rw
6 4 8:2 /alice/data {PODS}/volume-subpaths/v/main/0 rw - nfs server:/home rw
7 1 8:1 /tmp/pinnace-2001-x/volumes /var/lib/pinnace/volumes rw - ext4 /dev/sda rw
8 3 0:12 / {ROOT} rw - overlay overlay rw,lowerdir=/s/2/fs:/s/1/fs,upperdir=/s/3/fs,workdir=/s/3/work,userxattr
9 4 0:10 / {PODS}/volumes/kubernetes.io~empty-dir/m rw - tmpfs tmpfs rw
"""
HOST = "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 8:2 / /home rw - nfs server:/home rw\n"


def bind(target: str, source: str, *more: str) -> dict[str, Any]:
    return {"destination": target, "source": source, "type": "bind", "options": ["rbind", *more]}


def test_the_users_number_and_the_containers_are_exchanged() -> None:
    assert swapped_id_map(2001, 0, 65536) == "2001 0 1\n0 2001 1\n1 1 2000\n2002 2002 63535\n"
    assert (
        swapped_id_map(2001, 1000, 65536)
        == "2001 1000 1\n1000 2001 1\n0 0 1\n1 1 999\n1001 1001 1000\n2002 2002 63535\n"
    )
    assert swapped_id_map(1000, 1000, 2000) == "1000 1000 1\n0 0 1\n1 1 999\n1001 1001 1000\n"
    assert swapped_id_map(9000000, 0, 65536) == "9000000 0 1\n1 1 65536\n"  # a number that the node does not have
    assert swapped_id_map(2001, 0, 0) == "2001 0 1\n"  # one identity for all
    assert [swap_id(number, 2001, 0) for number in (0, 2001, 5)] == [2001, 0, 5]


@pytest.mark.parametrize(
    ("own", "asked", "last"), [(2001, 0, 65536), (2001, 1000, 65536), (1, 0, 9), (0, 0, 9), (5, 9, 9)]
)
def test_every_id_of_the_node_has_one_number_in_a_world(own: int, asked: int, last: int) -> None:
    pieces = [tuple(map(int, line.split())) for line in swapped_id_map(own, asked, last).splitlines()]
    pairs = [(inside + n, outside + n) for inside, outside, count in pieces for n in range(count)]
    assert sorted(outside for _, outside in pairs) == list(range(last + 1))
    assert len({inside for inside, _ in pairs}) == len(pairs)
    assert all(inside == swap_id(outside, own, asked) for inside, outside in pairs)


def test_who_asks() -> None:
    status = (
        "Name:\tsrun\nUmask:\t0027\nUid:\t200999\t200999\t200999\t200999\nGid:\t2001\t2001\t0\t0\nGroups:\t200033 7 \n"
        "CapBnd:\t00000000a80425fb\n"
    )
    asked = ProcessCredentials(uid=1000, gid=0, groups=(34,), users_groups=True, umask=0o027, capabilities=0xA80425FB)
    assert credentials_of(status, MANY, MANY) == asked == ProcessCredentials.from_json(asked.to_json())
    own = credentials_of(status.replace("200033 7", "200033"), MANY, MANY)
    assert (own.groups, own.users_groups) == ((34,), False)
    assert node_id(2001, ONE) == 0
    with pytest.raises(ValueError, match="200000"):
        node_id(200000, ONE)


def test_what_a_path_of_the_node_is_on_its_host() -> None:
    node, host = mount_points(NODE), mount_points(HOST)
    assert host_path("/home/alice/x", node, host) == "/home/alice/x"
    assert host_path(f"{PODS}/volume-subpaths/v/main/0", node, host) == "/home/alice/data"
    assert host_path(f"{PODS}/containers/x", node, host) == "/tmp/pinnace-2001-x/kubelet/pods/u/containers/x"
    assert host_path(f"{PODS}/volumes/kubernetes.io~secret/s", node, host) is None
    assert mount_points("1 0 8:1 / /with\\040space rw - ext4 x rw")[0].target == "/with space"
    for name in ("\x0b", "\x85", "\u2028", "\udcff"):  # the last is a byte that is no text
        assert mount_points(f"1 0 8:1 / /tmp/{name} rw - fuse x rw\n")[0].target == f"/tmp/{name}"


def test_a_container_is_described_by_what_others_say_of_it() -> None:
    mounts = [
        {"destination": "/proc", "source": "proc", "type": "proc", "options": ["nosuid"]},
        bind("/etc/hosts", f"{PODS}/etc-hosts", "rw"),
        bind("/dev/shm", "/run/containerd/shm", "rw"),
        bind("/data", "/home/alice/data", "rw"),
        bind("/sub", f"{PODS}/volume-subpaths/v/main/0", "ro"),
        bind("/secret", f"{PODS}/volumes/kubernetes.io~secret/s", "ro"),
        bind("/config", f"{PODS}/volumes/kubernetes.io~configmap/c", "ro"),
        bind("/empty", f"{PODS}/volumes/kubernetes.io~empty-dir/e", "rw"),
        bind("/memory", f"{PODS}/volumes/kubernetes.io~empty-dir/m", "rw"),
        bind("/scratch", "/var/lib/pinnace/volumes/pv", "rw"),
        bind("/driver", f"{PODS}/volumes/kubernetes.io~csi/d/mount", "rw"),
        bind("/run/pinnace", "/run/pinnace/ranks", "ro"),
    ]
    config = {"root": {"path": "rootfs", "readonly": True}, "mounts": mounts}
    found = describe("abc", config, node=NODE, host=HOST, scratch=SCRATCH)
    assert (found.root, found.lower, found.upper, found.read_only) == (ROOT, ("/s/2/fs", "/s/1/fs"), "/s/3/fs", True)
    assert [(volume.target, volume.kind, volume.read_only) for volume in found.volumes] == [
        ("/data", VolumeKind.HOST, False),
        ("/sub", VolumeKind.HOST, True),
        ("/secret", VolumeKind.COPIED, True),
        ("/config", VolumeKind.COPIED, True),
        ("/empty", VolumeKind.EMPTY, False),
        ("/memory", VolumeKind.EMPTY, False),
        ("/scratch", VolumeKind.EMPTY, False),
        ("/driver", VolumeKind.FIRST, False),
    ]
    assert found.volumes[1].host == "/home/alice/data"
    assert json.loads(json.dumps(found.to_json()))["image"] == found.image


def test_layers_may_be_relative_or_given_one_by_one() -> None:
    snapshots = "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots"
    assert layers("rw,lowerdir=2/fs:1/fs,upperdir=3/fs") == (
        (f"{snapshots}/2/fs", f"{snapshots}/1/fs"),
        f"{snapshots}/3/fs",
    )
    assert layers("rw,lowerdir+=/2,lowerdir+=/1,upperdir=/3")[0] == ("/2", "/1")


def test_slurms_own_srun_gets_what_was_asked_and_what_is_usual() -> None:
    asked = parse_srun(["--mpi=pmi2", "-n2", "prog"])
    assert step_argv(asked, ["rank"], mpi="pmix", cpus="3") == [
        "srun", "--overlap", "--cpus-per-task=3", "--mpi=pmi2", "--ntasks=2", "--", "rank",
    ]  # fmt: skip
    assert "--mpi=pmix" in step_argv(parse_srun(["prog"]), ["rank"], mpi="pmix", cpus=None)
    assert {"--nodes=2", "--ntasks=2", "--nodelist=b,c", "--overlap"} <= set(companion_argv(["b", "c"], ["x"]))
    listed = "MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\nspecific pmix plugin versions available: pmix_v4\n"
    assert default_mpi(listed.split()) == "pmix"
    assert default_mpi(["none", "pmi2"]) == "pmi2"
    assert default_mpi(["none"]) is None


def test_a_rank_does_not_get_the_users_token() -> None:
    task = {
        "SLURM_PROCID": "0",
        "SLURM_JWT": "t",
        "SLURM_SITE_TOKEN": "t",
        "OMPI_MCA_orte_precondition_transports": "k",
    }
    assert environment({}, task) == {"SLURM_PROCID": "0", "OMPI_MCA_orte_precondition_transports": "k"}


def test_a_rank_has_the_containers_environment_and_what_slurm_says() -> None:
    asked = {"A": "1", "PATH": "/bin", "SLURM_NTASKS": "8", "PMI_RANK": "9"}
    task = {"HOME": "/home/alice", "SLURM_PROCID": "3", "PMIX_RANK": "3", "PMIX_GDS_MODULE": "ds21", "SECRET": "x"}
    found = environment(asked, task)
    assert found == {
        "A": "1",
        "PATH": "/bin",
        "SLURM_PROCID": "3",
        "PMIX_RANK": "3",
        "PMIX_GDS_MODULE": "hash",
        "PMIX_MCA_gds": "hash",
        "PMIX_SECURITY_MODE": "native",
    }
    assert "PMIX_MCA_gds" not in environment(asked, {"SLURM_PROCID": "0"})


def test_how_many_tasks_a_job_has() -> None:
    assert launcher.tasks({"SLURM_TASKS_PER_NODE": "2(x3),1"}) == 7
    assert launcher.tasks({}) == 1


def test_mpirun_is_the_images_own(tmp_path: Path) -> None:
    (tmp_path / "mpirun").write_text("#!/bin/sh\n")
    (tmp_path / "mpirun").chmod(0o755)
    assert find("mpirun", f"{launcher.BIN}:/no/such:{tmp_path}") == f"{tmp_path}/mpirun"
    assert find("mpirun", launcher.BIN) is None
    assert find("./here", "") == "./here"


def test_links_of_an_image_lead_nowhere_else(tmp_path: Path) -> None:
    root = str(tmp_path)
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "run").symlink_to("/run")
    (tmp_path / "up").symlink_to("../../../etc")
    (tmp_path / "loop").symlink_to("loop")
    assert world.resolve(root, "/var/run/x") == f"{root}/run/x"
    assert world.resolve(root, "/up/passwd") == f"{root}/etc/passwd"
    assert world.resolve(root, "../../x") == f"{root}/x"
    with pytest.raises(OSError, match="too many symbolic links"):
        world.resolve(root, "/loop/x")
    assert Path(world.make_mount_point(root, "/var/run/a/file", directory=False)).is_file()
    assert Path(world.make_mount_point(root, "/var/run/b", directory=True)).is_dir()


def test_a_world_ends_with_its_root() -> None:
    binds = [world.Bind(root="/at", target="/data", source="/home/x")]
    steps = world.plan(
        "/at",
        world.Root(lower="/l", upper="/u", work="/w"),
        binds,
        proc="/p",
        names={"/etc/hosts": "/h"},
        read_only=True,
    )
    said = [step.describe() for step in steps]
    assert said[1] == "overlay on /at overlay lowerdir=/l,upperdir=/u,workdir=/w,userxattr"
    assert said.index("/p at /proc") < said.index("/home/x at /data") < said.index("/h at /etc/hosts")
    assert said[-2:] == ["/at read-only", "pivot_root /at"]


def test_the_launchers_program_is_what_its_source_gives(tmp_path: Path) -> None:
    subprocess.run(launcher.compile_argv("amd64", tmp_path / "amd64"), check=True, timeout=60)
    assert (tmp_path / "amd64").read_bytes() == (launcher.PROGRAMS / "amd64").read_bytes()
    assert (launcher.PROGRAMS / "arm64").read_bytes()[18:20] == (183).to_bytes(2, "little")  # EM_AARCH64


def test_a_launcher_without_a_node_says_so(tmp_path: Path) -> None:
    launcher.install(tmp_path)
    done = subprocess.run([tmp_path / "ranks/bin/srun"], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (1, "pinnace: the node that starts ranks does not answer\n")
