"""What somebody who was let into a cluster tries: to be its administrator, its user on the host, or another tenant.

The second user has a kubeconfig from `pinnace kubeconfig --for` with the role `edit` in one namespace of a restricted
cluster. Each attack is what an unrestricted cluster, or an earlier version, allowed.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from e2e.conftest import Kubectl
from e2e.namespaces import Object, image, once, pod, service
from e2e.podjobs import log_of, manifest, wait_for_phase
from testbed.plan import GROUPS
from testbed.waiting import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from e2e.conftest import User

pytestmark = [pytest.mark.bed, pytest.mark.timeout(400)]

NAME, TEAM = "restricted", "team"
OFFERED, WRITABLE, SURVEY = "offered", "open", GROUPS[1]
NOT_STARTED = "{.status.containerStatuses[0].state.waiting.reason}=CreateContainerConfigError"
# What the level `restricted` asks of a pod, so that an attack fails for what it attacks, and for nothing else.
DROPPED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
ORDINARY = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
HOST_NETWORK_CLASS = {
    "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "host-network"},
    "handler": "host-network",
}  # fmt: skip
# The TCP ports of an address that are open, of those that services of a node have; the proxy's own is above.
SCAN = """
import asyncio, sys
async def look(port, gate):
    async with gate:
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(sys.argv[1], port), 3)
        except (OSError, asyncio.TimeoutError):
            return None
        writer.close()
        return port
async def main():
    gate = asyncio.Semaphore(200)
    found = await asyncio.gather(*(look(port, gate) for port in range(1, 12000)))
    print(*(port for port in found if port))
asyncio.run(main())
"""
# The status of GET requests, without and with the pod's own token; a dash where there is no answer.
ASK = """
import ssl, sys, urllib.error, urllib.request
context = ssl._create_unverified_context()
token = open("/var/run/secrets/kubernetes.io/serviceaccount/token").read()
for url in sys.argv[1:]:
    for headers in ({}, {"Authorization": f"Bearer {token}"}):
        try:
            request = urllib.request.Request(url, headers=headers)
            code = urllib.request.urlopen(request, context=context, timeout=5).status
        except urllib.error.HTTPError as error:
            code = error.code
        except OSError:
            code = "-"
        print(code, end=" ")
    print()
"""


@dataclass(kw_only=True)
class PodReference:
    """kubectl of somebody who has a kubeconfig and no cluster."""

    user: User
    kubectl: str

    @property
    def command(self) -> list[str]:
        return [self.kubectl, "--kubeconfig", "tenant.kubeconfig"]

    def run(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        return self.user.run(*self.command, *words, code=code)

    def __call__(self, *words: str) -> str:
        return self.run(*words).stdout

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "-o", "json"))

    def create(self, *objects: Object, code: int | None = 0) -> str:
        document = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.user.write("tenant.json", json.dumps(document))
        return self.run("create", "-f", "tenant.json", code=code).stderr

    def ended(self, name: str, phase: str = "Succeeded") -> str:
        self("wait", f"--for=jsonpath={{.status.phase}}={phase}", f"pod/{name}", "--timeout=110s")
        return log_of(self, name)

    def events(self, name: str) -> str:
        return self(
            "get", "events", "--field-selector", f"involvedObject.name={name}", "-o", "jsonpath={.items[*].message}"
        )


def ordinary(made: Object, *, of_container: Object | None = None, **of_pod: Any) -> Object:
    """The same pod with what the level `restricted` wants, and over it what an attack wants."""
    spec = made["spec"]
    main = spec["containers"][0]
    main = main | {"securityContext": DROPPED | main.get("securityContext", {})} | (of_container or {})
    context = {"securityContext": ORDINARY | spec.get("securityContext", {})}
    return made | {"spec": {**spec, **context, "automountServiceAccountToken": True, "containers": [main], **of_pod}}


def volume(kind: str, **source: Any) -> Object:
    return {"volumes": [{"name": "v", kind: source}]}


def claim(name: str, class_name: str, **annotations: str) -> Object:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Mi"}}}
    return {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "annotations": annotations},
        "spec": spec | {"storageClassName": class_name},
    }  # fmt: skip


@contextlib.contextmanager
def up(user: User, name: str, *words: str) -> Iterator[Kubectl]:
    images = [word for of in ("busybox", "python") for word in ("--image", f"{of}.tar")]
    user.pinnace("up", "--name", name, "-w", "n3", *images, *words)
    try:
        yield Kubectl(user=user, cluster=name)
    finally:
        user.pinnace("down", name)


@pytest.fixture(scope="module")
def restricted(alice: User) -> Iterator[Kubectl]:
    for name in (OFFERED, WRITABLE):
        (alice.home / name).mkdir(exist_ok=True)
        (alice.home / name).chmod(0o777)
        (alice.home / name / "file").write_text("for all\n")
    home = f"/home/{alice.name}"
    offered = (f"{home}/{OFFERED}", f"{home}/{WRITABLE}:rw", f"/home/{SURVEY.directory}")
    words = [word for path in offered for word in ("--allow-host-path", path)]
    with up(alice, NAME, "--restricted", "--elastic", "0:0", *words) as made:
        yield made


@pytest.fixture(scope="module")
def tenant(restricted: Kubectl, bob: User) -> PodReference:
    alice = restricted.user
    given = alice.pinnace("kubeconfig", NAME, "--for", "bob", "--namespace", TEAM, "--valid", "1h").stdout
    bob.write("tenant.kubeconfig", given)
    about = json.loads((alice.home / f".local/share/pinnace/clusters/{NAME}/cluster.json").read_text())
    tenant = PodReference(user=bob, kubectl=about["binaries"]["kubectl"])
    restricted("-n", TEAM, "wait", "--for=create", "serviceaccount/default", "--timeout=60s")
    return tenant


PODS: dict[str, tuple[str, Object]] = {
    "host-path": ("hostPath", ordinary(pod("x"), **volume("hostPath", path="/home/alice"))),
    "privileged": ("privileged", ordinary(pod("x"), of_container={"securityContext": {"privileged": True}})),
    "host-network": ("host namespaces", ordinary(pod("x"), hostNetwork=True)),
    "host-network-class": ("not found", ordinary(pod("x"), runtimeClassName="host-network")),
    "host-pid": ("host namespaces", ordinary(pod("x"), hostPID=True)),
    "host-port": ("hostPort", ordinary(pod("x"), of_container={"ports": [{"containerPort": 80, "hostPort": 80}]})),
    "root": ("runAsNonRoot", ordinary(pod("x"), securityContext={"seccompProfile": {"type": "RuntimeDefault"}})),
    "unfiltered": ("seccompProfile", ordinary(pod("x"), securityContext={"runAsNonRoot": True})),
    "escalation": ("allowPrivilegeEscalation", ordinary(pod("x"), of_container={"securityContext": {}})),
    "capability": (
        "capabilities",
        ordinary(pod("x"), of_container={"securityContext": DROPPED | {"capabilities": {"add": ["SYS_ADMIN"]}}}),
    ),
    "probe": (
        "probe",
        ordinary(pod("x"), of_container={"livenessProbe": {"httpGet": {"host": "127.0.0.1", "port": 10230}}}),
    ),
    "node": ("leave nodeName out", ordinary(pod("x"), nodeName="n3")),
    "toleration": ("must name a taint", ordinary(pod("x"), tolerations=[{"operator": "Exists"}])),
    "head": (
        "must name a taint",
        ordinary(pod("x"), tolerations=[{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]),
    ),
    "others-node": ("must name a taint", ordinary(pod("x"), tolerations=[{"key": "pinnace.dev/pod", "value": "x"}])),
    "priority": ("priority classes", ordinary(pod("x"), priorityClassName="system-node-critical")),
    "nfs": ("nfs", ordinary(pod("x"), **volume("nfs", server="192.0.2.1", path="/"))),
    "flex": ("flexVolume", ordinary(pod("x"), **volume("flexVolume", driver="a/b"))),
}


@pytest.mark.parametrize("attack", PODS)
def test_a_pod_that_reaches_for_its_node(tenant: PodReference, attack: str) -> None:
    words, body = PODS[attack]
    said = tenant.create(body, code=1)
    assert "forbidden" in said.lower(), said
    assert words in said


def test_the_same_through_a_controller(tenant: PodReference) -> None:
    """Who makes the pods of a Job may do more than the tenant; the namespace decides all the same."""
    template = pod("x", **volume("hostPath", path="/home/alice"), restartPolicy="Never")
    spec = {"template": {"spec": template["spec"]}, "backoffLimit": 0}
    tenant.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "reaching"}, "spec": spec})
    wait_until("the refusal", lambda: "hostPath" in tenant.events("reaching"), limit=60, interval=0.5)
    assert not tenant.json("get", "pods", "-l", "job-name=reaching")["items"]


def test_what_the_role_must_not_give(tenant: PodReference) -> None:
    """Each of these would be a way to the cluster's administrator, or to its user."""
    asked = {
        ("create", "persistentvolumes"), ("create", "storageclasses"), ("create", "namespaces"), ("patch", "nodes"),
        ("patch", "namespaces"), ("create", "clusterrolebindings"), ("create", "rolebindings"),
        ("create", "certificatesigningrequests"), ("create", "mutatingwebhookconfigurations"),
        ("delete", "validatingadmissionpolicies"), ("get", "nodes/proxy"), ("create", "pods/binding"),
        ("create", "pods/ephemeralcontainers"), ("patch", "pods/status"), ("patch", "services/status"),
        ("create", "endpointslices"), ("create", "endpoints"), ("impersonate", "users"), ("impersonate", "groups"),
        ("get", "secrets -n kube-system"), ("create", "pods -n kube-system"), ("create", "pods/exec -n kube-system"),
        ("create", "pods -n default"), ("impersonate", "serviceaccounts -n kube-system"),
        ("create", "slurmjobs.pinnace.dev"), ("create", "runtimeclasses"),
    }  # fmt: skip

    def may(*words: str) -> bool:
        return tenant.run("auth", "can-i", *words, code=None).returncode == 0

    def part(what: str) -> list[str]:
        return what.replace("/", " --subresource=").split()

    assert {(verb, what) for verb, what in asked if may(verb, *part(what))} == set()
    assert may("create", "pods")
    assert not may("get", "pods", "--as", f"system:serviceaccount:{TEAM}:default"), "a pod's token gives nothing"


def test_no_node_can_put_a_pod_into_its_hosts_network(restricted: Kubectl, tenant: PodReference) -> None:
    """Not even if the administrator makes the RuntimeClass that other clusters have."""
    restricted.apply(json.dumps(HOST_NETWORK_CLASS))
    tenant.create(ordinary(pod("outward"), runtimeClassName="host-network"))
    wait_until("the refusal", lambda: "no runtime for" in tenant.events("outward"), limit=60, interval=0.5)
    tenant("delete", "pod/outward")
    restricted("delete", "runtimeclass", "host-network")


def test_services_that_take_the_addresses_of_others(tenant: PodReference) -> None:
    taking = service("taking", {"app": "x"}, {"port": 443}, externalIPs=["10.96.0.1"])
    assert "externalIPs" in tenant.create(taking, code=1)


def test_what_a_pod_reaches_over_the_network(restricted: Kubectl, tenant: PodReference) -> None:
    """Everything that listens on a node asks for proof, and a pod's own token is none."""
    node = restricted.json("get", "nodes")["items"][0]["status"]["addresses"][0]["address"]
    resolver = ".".join([*node.split(".")[:2], "255", "254"])
    urls = [
        f"https://{node}:6443/version",
        f"https://{node}:6443/api/v1/namespaces/kube-system/secrets",
        f"https://{node}:10250/pods",
        f"https://{node}:10250/logs/",
        f"https://{node}:10250/run/{TEAM}/reaching/main?cmd=id",
        f"https://{node}:10240/metrics",
        f"https://{node}:10241/metrics/resource",
        f"https://{node}:10242/containerLogs/{TEAM}/reaching/main",
        f"http://{resolver}:6818/",
    ]
    tenant.create(
        ordinary(once("asking", 'python3 -c "$ASK" $URLS; python3 -c "$SCAN" $NODE', of="python"),
                 of_container={"env": [{"name": "ASK", "value": ASK}, {"name": "SCAN", "value": SCAN},
                                       {"name": "URLS", "value": " ".join(urls)}, {"name": "NODE", "value": node}]})
    )  # fmt: skip
    *answers, ports = tenant.ended("asking").splitlines()
    assert [answer.split() for answer in answers] == [
        ["401", "200"],  # what every account may know
        ["401", "403"],
        ["401", "403"],
        ["401", "403"],
        ["401", "403"],
        ["403", "403"],
        ["-", "-"],
        ["-", "-"],
        ["-", "-"],
    ]
    assert set(ports.split()) == {"53", "6443", "10240", "10241", "10242", "10250"}


def test_directories_of_the_host_are_those_that_were_listed(restricted: Kubectl, tenant: PodReference) -> None:
    """Through a claim, as the host's other users; and through no claim anything else."""

    def using(name: str) -> Object:
        look = "cat /data/file; echo written > /data/by-bob; ls -a /data | wc -l"
        mounts = {"volumeMounts": [{"name": "v", "mountPath": "/data"}]}
        return ordinary(once(name, look), of_container=mounts, **volume("persistentVolumeClaim", claimName=name))

    home, asked = "/home/alice", {"volume.kubernetes.io/storage-provisioner": "pinnace.dev/host-path"}
    names = (OFFERED, WRITABLE)
    # Even who may make classes, the administrator, gets no other directory by one.
    other = {"provisioner": "pinnace.dev/host-path", "parameters": {"path": home}}
    restricted.apply(json.dumps(
        {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "all-of-it"}, **other}
    ))  # fmt: skip
    tenant.create(
        *(claim(name, f"host-home-alice-{name}") for name in names),
        *(using(name) for name in names),
        claim("other", "all-of-it"),
        claim("lying", "shared", **asked),
    )
    said = {name: [line for line in tenant.ended(name).splitlines() if line[:3] != "sh:"] for name in names}
    assert said == {OFFERED: ["for all", "3"], WRITABLE: ["for all", "4"]}
    wait_until("the refusal", lambda: "has not listed" in tenant.events("other"), limit=60, interval=0.5)
    volumes = [found["spec"] for found in restricted.json("get", "persistentvolumes")["items"]]
    reached = {found["hostPath"]["path"] for found in volumes if "hostPath" in found}
    assert reached == {f"{home}/{name}" for name in names}
    tenant("delete", *(f"pod/{name}" for name in names), *(f"pvc/{name}" for name in (*names, "other", "lying")))
    wait_until("the volumes to go", lambda: not restricted.json("get", "pv")["items"], limit=60, interval=0.5)
    assert (restricted.user.home / WRITABLE / "by-bob").read_text() == "written\n", "what is there stays"
    assert not (restricted.user.home / OFFERED / "by-bob").exists()


def test_the_groups_of_the_user_are_not_the_tenants(restricted: Kubectl, tenant: PodReference) -> None:
    """What only her groups may read stays closed, also in a directory that she has listed, and for the kubelet, too."""
    alice = restricted.user
    alice.run("sh", "-c", "mkdir -p /home/groups/survey/open; echo data > /home/groups/survey/open/file")
    tenant.create(claim("survey", f"host-home-{SURVEY.directory.replace('/', '-')}"))
    volumes = volume("persistentVolumeClaim", claimName="survey")
    for name, mount in (("whole", {}), ("part", {"subPath": "open"})):
        mounts = {"volumeMounts": [{"name": "v", "mountPath": "/data", **mount}]}
        tenant.create(ordinary(once(name, "cat /data/file /data/open/file; id -G"), of_container=mounts, **volumes))
    said = tenant.ended("whole").splitlines()  # in any order: errors come by a pipe of their own
    assert [line for line in said if not line.startswith("cat:")] == ["1000"], "its own group alone, and no data"
    tenant("wait", f"--for=jsonpath={NOT_STARTED}", "pod/part", "--timeout=60s")
    tenant("delete", "pod/whole", "pod/part", "pvc/survey")
    wait_until("the volumes to go", lambda: not restricted.json("get", "pv")["items"], limit=60, interval=0.5)


def test_links_in_a_volume_lead_nowhere_else(tenant: PodReference) -> None:
    """The kubelet, which is the user, prepares what a pod calls a part of its volume."""
    made = ordinary(
        once("linked", "ls /part"),
        of_container={"volumeMounts": [{"name": "v", "mountPath": "/part", "subPath": "link"}]},
        **volume("emptyDir"),
    )
    first = {
        "name": "first", "image": image("busybox"), "command": ["ln", "-s", "/home/alice", "/v/link"],
        "securityContext": DROPPED, "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    }  # fmt: skip
    tenant.create(made | {"spec": made["spec"] | {"initContainers": [first]}})
    tenant("wait", f"--for=jsonpath={NOT_STARTED}", "pod/linked", "--timeout=60s")
    tenant("delete", "pod/linked")


def as_job(name: str, command: list[str], **annotations: str) -> Object:
    notes = {f"pinnace.dev/{key.replace('_', '-')}": text for key, text in annotations.items()}
    notes["pinnace.dev/run-as"] = "job"
    made: Object = json.loads(manifest(name, command, metadata={"annotations": notes}))
    return ordinary(made)


def provisioner_ends(user: User) -> int:
    """How often the provisioner of the restricted cluster has ended."""
    logs = (user.home / f".local/share/pinnace/clusters/{NAME}/logs").glob("agent-*.log")
    return sum(log.read_text().count("provisioner ended") for log in logs)


def test_pods_that_are_jobs_ask_slurm_for_what_they_need_alone(restricted: Kubectl, tenant: PodReference) -> None:
    """Whose account pays is the user's to say; and notes that only the provisioner writes do not stop it."""
    refused = {
        "paid-by-others": as_job("paid-by-others", ["true"], flags="--account=other"),
        "reserved": as_job("reserved", ["true"], flags="--reservation=x"),
        "mailing": as_job("mailing", ["true"], flags="--mail-user=x@example.org"),
        "waste": as_job("waste", ["true"], flags="--nodes=3"),
        "on-the-host": as_job("on-the-host", ["true"], mpi_flags="--tag-output"),
    }
    # What the provisioner notes on a pod: here by somebody else, and not as it would.
    forged = as_job("forged", ["true"], job="0x7f", submitted_at="never")
    look = "ls /run/pinnace /run/pinnace/socket 2>/dev/null; which srun mpirun; echo $SLURM_JOB_ID; id -u"
    honest = as_job("honest", ["sh", "-c", look], flags="--time=5 --mem=1200M")
    before = provisioner_ends(restricted.user)
    tenant.create(forged, *refused.values(), honest)
    said = tenant.ended("honest").splitlines()
    assert said[-2:] == ["", "1000"], "nothing of the host's, and nothing to start ranks with"
    assert not any(line.startswith("/") for line in said)
    for name in refused:
        wait_until("a refusal", lambda name=name: "restricted cluster" in tenant.events(name), limit=60, interval=0.5)  # type: ignore[misc]
    assert provisioner_ends(restricted.user) == before
    tenant("delete", "pod", "--wait=false", "honest", "forged", *refused)


def test_nobody_is_anonymous_at_the_api(restricted: Kubectl, tenant: PodReference) -> None:
    """The port is open to the site; a stranger learns nothing there, not even the version."""
    about = json.loads((tenant.user.home / "tenant.kubeconfig").read_text())
    server = about["clusters"][0]["cluster"]["server"]
    for path in ("/version", "/healthz", "/livez", "/api", "/openid/v1/jwks"):
        code = tenant.user.run("curl", "-sk", "-m", "10", "-o", "/dev/null", "-w", "%{http_code}", server + path).stdout
        assert code == "401", path
    assert restricted("get", "--raw", "/livez") == "ok"


# --- in the user's own cluster ---------------------------------------------------------------------------------------

COPY = "cp $(readlink -f $(which python3)) /setuid/python && chmod 4755 /setuid/python"
RIGHTS = (
    "grep -E '^(NoNewPrivs|CapBnd):' /proc/self/status | cut -f2 | sort | xargs; "
    "/setuid/python -c 'import os; print(os.geteuid())'"
)


def test_ranks_have_no_more_rights_than_who_asked_for_them(alice: User) -> None:
    """A container that must not gain privileges does not gain them by `srun`, for all that its volumes hold."""
    with up(alice, "setuid", "--pods-as-jobs") as jobs:
        said = alice.pinnace("kubeconfig", "setuid", "--for", "bob", code=None)
        assert (said.returncode, "is not restricted" in said.stderr) == (1, True), "a pod there is its user"
        mount = {"volumeMounts": [{"name": "v", "mountPath": "/setuid"}]}
        asking = json.loads(manifest("asking", ["sleep", "3600"], image=image("python")))
        made = ordinary(asking, of_container=mount, **volume("emptyDir"))
        maker: Object = {"name": "maker", "image": image("python"), "command": ["sh", "-c", COPY], **mount}
        maker["securityContext"] = {"runAsUser": 0, "runAsNonRoot": False}
        jobs.apply(json.dumps(made | {"spec": made["spec"] | {"initContainers": [maker]}}))
        wait_for_phase(jobs, "asking", "Running")

        def inside(script: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
            return alice.pinnace("kubectl", "--name", "setuid", "exec", "asking", "--", "sh", "-c", script, code=code)

        container = inside(RIGHTS).stdout
        assert container == "0000000000000000 1\n1000\n"
        assert inside(f'srun -n1 sh -c "{RIGHTS}"').stdout == f"0000000000000000 1\n{alice.uid}\n"
        reads = inside("srun --nodelist=/etc/passwd true", code=None)
        assert (reads.returncode, "a file of the host's" in reads.stderr) == (2, True)
