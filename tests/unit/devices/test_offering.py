"""Which devices a node offers, and under which names."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinnace.devices.offering import DeviceMapping, HostDevices, natural, offered
from pinnace.devices.resources import GRES
from pinnace.slurm.gres import AllocatedGres, parse_gres, parse_indexes
from pinnace.spec.devices import DeviceOffer

UUIDS = [f"GPU-0000000{number}-aaaa-bbbb-cccc-000000000000" for number in range(4)]
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n1"}


class Site:
    """A host below a directory, with four NVIDIA GPUs. ``denied`` are files that the device cgroup keeps from us."""

    def __init__(self, root: Path) -> None:
        self.root, self.dev, self.denied = root, root / "dev", set[str]()
        self.dev.mkdir()

    def file(self, name: str) -> str:
        path = self.dev / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return str(path)

    def text(self, name: str, content: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def nvidia(self, count: int = 4) -> Site:
        for name in ("nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1", "nvidia-modeset"):
            self.file(name)
        for number in range(count):
            self.file(f"nvidia{number}")
            pci = f"0000:{0xC0 - number:x}:00.0"
            about = f"GPU UUID: \t {UUIDS[number]}\nBus Location: \t {pci}\nDevice Minor: \t {number}\n"
            self.text(f"proc/driver/nvidia/gpus/{pci}/information", f"Model: \t\t X\n{about}")
            self.text(f"sys/bus/pci/devices/{pci}/numa_node", f"{number % 2}\n")
        return self

    def offer(
        self,
        environment: dict[str, str],
        mapping: DeviceMapping | None = None,
        allocated: list[AllocatedGres] | None = None,
    ) -> DeviceOffer:
        def details() -> list[AllocatedGres]:
            assert allocated is not None, "Slurm was asked in vain"
            return allocated

        host = HostDevices(
            root=self.root,
            devices=self.dev,
            may_use=lambda path: Path(path).exists() and Path(path).name not in self.denied,
            loader_cache=self.root / "none",
        )
        return offered(host, environment, mapping or DeviceMapping(), details)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def ids(offer: DeviceOffer) -> list[str]:
    return [device.id for device in offer.devices]


def test_only_what_slurm_named_where_nothing_is_constrained(site: Site) -> None:
    site.nvidia()
    offer = site.offer(STEP | {"SLURM_STEP_GPUS": "1,3", "SLURM_JOB_GPUS": "0,1,2,3"})
    assert ids(offer) == [UUIDS[1], UUIDS[3]]
    assert offer.resources == ("nvidia.com/gpu",)
    first = offer.devices[0]
    names = [Path(path).name for path in first.files]
    assert names == ["nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-modeset"]
    assert first.variables == ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    assert (first.value, first.numa_node) == (UUIDS[1], 1)


def test_what_the_device_cgroup_leaves_where_it_is_constrained(site: Site) -> None:
    """Slurm's numbers may be places in gres.conf: then the cgroup is right."""
    site.nvidia()
    site.denied = {"nvidia0", "nvidia1"}
    assert ids(site.offer(STEP | {"SLURM_STEP_GPUS": "0,1"})) == [UUIDS[2], UUIDS[3]]
    assert ids(site.offer(STEP | {"SLURM_STEP_GPUS": "2"})) == [UUIDS[2]]
    assert ids(site.offer(STEP | {"SLURM_STEP_GPUS": "1"})) == [], "named, but it cannot be opened"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, UUIDS),  # without Slurm, all
        ({"SLURM_JOB_ID": "7"}, []),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "2"}, [UUIDS[2]]),  # in a batch script
        (STEP | {"SLURM_JOB_GPUS": "2"}, []),  # of the first host, handed on by srun
        (STEP | {"SLURM_STEP_GPUS": "0", "CUDA_VISIBLE_DEVICES": UUIDS[3]}, [UUIDS[3]]),
        (STEP | {"SLURM_STEP_GPUS": "0", "CUDA_VISIBLE_DEVICES": "0"}, [UUIDS[0]]),
        (STEP | {"CUDA_VISIBLE_DEVICES": "0"}, []),  # the user's own, without a GPU of Slurm's
        (STEP | {"SLURM_STEP_GPUS": "9"}, []),
    ],
)
def test_where_slurm_says_it(site: Site, environment: dict[str, str], expected: list[str]) -> None:
    assert ids(site.nvidia().offer(environment)) == expected


def test_numbers_that_no_file_has_are_places(site: Site) -> None:
    site.nvidia(4)
    (site.dev / "nvidia0").unlink()
    assert ids(site.offer(STEP | {"SLURM_STEP_GPUS": "0,2"})) == [UUIDS[1], UUIDS[3]]


def test_a_gpu_whose_uuid_is_not_known_yet(site: Site) -> None:
    site.file("nvidia0")
    (device,) = site.offer({}).devices
    assert (device.id, device.variables, device.value) == ("nvidia0", (), "")


def test_a_host_without_devices_offers_nothing(site: Site) -> None:
    assert site.offer({}) == DeviceOffer()


def test_a_pod_whose_devices_are_not_there_is_told_so(site: Site) -> None:
    """The kubelet would start a pod with a resource that it has never heard of."""
    offer = site.offer(STEP, DeviceMapping(resources=("nvidia.com/gpu",)))
    assert (offer.devices, offer.resources) == ((), ("nvidia.com/gpu",))


def test_types(site: Site) -> None:
    site.nvidia()
    gres = GRES | {"nvidia.com/a100": "gpu:a100"}
    allocated = [
        AllocatedGres(name="gpu", type="a100", count=1, indexes=(0,)),
        AllocatedGres(name="gpu", type="t4", count=1, indexes=(2,)),
    ]
    environment = STEP | {"SLURM_STEP_GPUS": "0,2"}
    offer = site.offer(environment, DeviceMapping(gres=gres), allocated)
    assert [(device.resource, device.id) for device in offer.devices] == [
        ("nvidia.com/a100", UUIDS[0]),
        ("nvidia.com/gpu", UUIDS[2]),
    ]
    one = site.offer(environment, DeviceMapping(gres=gres, resources=("nvidia.com/gpu",)))
    assert {device.resource for device in one.devices} == {"nvidia.com/gpu"}
    assert len(one.devices) == 2


def test_mig_devices_by_their_instances(site: Site) -> None:
    site.nvidia(2)
    for number in (21, 22, 30):
        site.file(f"nvidia-caps/nvidia-cap{number}")
    top = "proc/driver/nvidia/capabilities/gpu1/mig/gi3"
    site.text(f"{top}/access", "DeviceFileMinor: 21\nDeviceFileMode: 292\n")
    site.text(f"{top}/ci0/access", "DeviceFileMinor: 22\nDeviceFileMode: 292\n")
    name = f"MIG-{UUIDS[1]}/3/0"
    (device,) = site.offer(STEP | {"SLURM_STEP_GPUS": "1", "CUDA_VISIBLE_DEVICES": name}).devices
    files = [Path(path).name for path in device.files]
    assert files == ["nvidia1", "nvidia-cap21", "nvidia-cap22", "nvidiactl", "nvidia-uvm", "nvidia-modeset"]
    assert device.value == name
    assert "/" not in device.id


def test_mig_devices_without_their_gpu_in_the_name(site: Site) -> None:
    """What the device cgroup leaves; a type may have a resource of its own."""
    site.nvidia(2)
    for number in (21, 22, 30):
        site.file(f"nvidia-caps/nvidia-cap{number}")
    site.denied = {"nvidia1", "nvidia-cap30"}
    gres = GRES | {"nvidia.com/mig-1g.5gb": "gpu:1g.5gb"}
    allocated = [AllocatedGres(name="gpu", type="1g.5gb", count=1, indexes=(0,))]
    name = "MIG-c7384736-a75d-5afc-978f-d2f1294409fd"
    environment = STEP | {"SLURM_STEP_GPUS": "0", "CUDA_VISIBLE_DEVICES": name}
    (device,) = site.offer(environment, DeviceMapping(gres=gres), allocated).devices
    assert (device.resource, device.id) == ("nvidia.com/mig-1g.5gb", name)
    assert [Path(path).name for path in device.files][:3] == ["nvidia0", "nvidia-cap21", "nvidia-cap22"]


def drm(site: Site, number: int, vendor: str, driver: str) -> None:
    pci = f"0000:{number:02x}:00.0"
    device = site.root / f"sys/bus/pci/devices/{pci}"
    (device / f"drm/renderD{number}").mkdir(parents=True)
    (device / f"drm/card{number - 128}").mkdir()
    (site.root / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
    (device / "driver").symlink_to(site.root / f"sys/bus/pci/drivers/{driver}")
    site.text(f"sys/bus/pci/devices/{pci}/vendor", f"{vendor}\n")
    link = site.root / f"sys/class/drm/renderD{number}"
    link.mkdir(parents=True)
    (link / "device").symlink_to(device)
    site.file(f"dri/renderD{number}")
    site.file(f"dri/card{number - 128}")


def test_amd(site: Site) -> None:
    for number in (128, 129):
        drm(site, number, "0x1002", "amdgpu")
        text = f"cpu_cores_count 0\ndrm_render_minor {number}\nunique_id {number}\n"
        site.text(f"sys/class/kfd/kfd/topology/nodes/{number}/properties", text)
    site.file("kfd")
    for named in ("1", "129"):  # a place, or a number
        (device,) = site.offer(STEP | {"SLURM_STEP_GPUS": named}).devices
        assert device.resource == "amd.com/gpu"
        assert [Path(path).name for path in device.files] == ["renderD129", "card1", "kfd"]
        assert (device.variables, device.value) == (("ROCR_VISIBLE_DEVICES",), "GPU-0000000000000081")


@pytest.mark.parametrize("driver", ["i915", "xe"])
def test_intel(site: Site, driver: str) -> None:
    drm(site, 128, "0x8086", driver)
    (device,) = site.offer(STEP | {"SLURM_STEP_GPUS": "0"}).devices
    assert device.resource == f"gpu.intel.com/{driver}"
    assert [Path(path).name for path in device.files] == ["renderD128", "card0"]
    assert device.variables == ()


def test_what_the_site_maps(site: Site) -> None:
    paths = [site.file(f"fpga{number}") for number in range(12)]
    gres = GRES | {"example.com/fpga": "fpga", "example.com/licence": "lic:gold"}
    mapping = DeviceMapping(gres=gres, files={"example.com/fpga": [f"{site.dev}/fpga*"]})
    allocated = [
        AllocatedGres(name="fpga", type="", count=2, indexes=(2, 10)),
        AllocatedGres(name="lic", type="gold", count=2),
        AllocatedGres(name="lic", type="iron", count=3),
    ]
    offer = site.offer(STEP, mapping, allocated)
    assert [device.files for device in offer.of("example.com/fpga")] == [(paths[2],), (paths[10],)]
    assert [device.files for device in offer.of("example.com/licence")] == [(), ()]
    site.denied = {"fpga2"}
    assert len(site.offer(STEP, mapping, allocated).of("example.com/fpga")) == 1
    assert len(site.offer({}, mapping).of("example.com/fpga")) == 11, "without Slurm"


def test_adapters_for_rdma_are_shared(site: Site) -> None:
    for name in ("uverbs0", "uverbs1", "rdma_cm"):
        site.file(f"infiniband/{name}")
    offer = site.offer(STEP)
    assert len(offer.of("rdma/hca")) == 64
    assert [Path(path).name for path in offer.devices[0].files] == ["rdma_cm", "uverbs0", "uverbs1"]
    mapped = DeviceMapping(gres=GRES | {"rdma/hca": "nic"})
    assert len(site.offer(STEP, mapped, [AllocatedGres(name="nic", type="", count=1)]).devices) == 1
    site.denied = {"uverbs0", "uverbs1"}
    assert site.offer(STEP).devices == ()


def test_natural_order() -> None:
    assert sorted(["/dev/a10", "/dev/a2", "/dev/a"], key=natural) == ["/dev/a", "/dev/a2", "/dev/a10"]


DETAILS = """JobId=12 JobName=x
   NodeList=n[2-4]
     Nodes=n2 CPU_IDs=0-1 Mem=3072 GRES=gpu:tesla:2(IDX:0-1),fpga:1(IDX:3),lic:gold:4(CNT:4)
     Nodes=n[3-4] CPU_IDs=0-1 Mem=3072 GRES=gpu:1(IDX:0,2-3)
     Nodes=n5 CPU_IDs=0-1 Mem=3072 GRES=
   TresPerNode=gres:gpu:2
"""


def test_the_generic_resources_of_a_job() -> None:
    def expand(_nodes: str) -> list[str]:
        return ["n3", "n4"]

    assert parse_gres(DETAILS, "n2", expand) == [
        AllocatedGres(name="gpu", type="tesla", count=2, indexes=(0, 1)),
        AllocatedGres(name="fpga", type="", count=1, indexes=(3,)),
        AllocatedGres(name="lic", type="gold", count=4),
    ]
    assert parse_gres(DETAILS, "n4", expand)[0].indexes == (0, 2, 3)
    assert parse_gres(DETAILS, "n5", expand) == []
    assert parse_gres(DETAILS, "n6", expand) == []
    assert parse_indexes("N/A") == ()
