"""What a tenant could try to get out of the bridge beyond a Slurm job, or to stop it for others with."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from e2e.bridge import s3_server
from e2e.bridge.conftest import IMAGE, bridge_job, conditions, s3_secret, secret, slurmjob, token
from pinnace.bridge import pods
from pinnace.bridge.slurmjob import SlurmJob
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from e2e.bridge.conftest import Cluster, Object

pytestmark = pytest.mark.bed
NAMESPACE = "tenants"  # served by the bridge, and not as alice
PORT = 7171
LISTENER = f"http://10.50.0.1:{PORT}"
PRIVATE = "only-for-those-on-the-login-host"
# A service that trusts everybody on its host: it answers with a secret, and notes what it is asked.
SERVICE = f"""
import http.server, sys
class Service(http.server.BaseHTTPRequestHandler):
    def answer(self):
        with open("asked.txt", "a") as file:
            file.write(f"{{self.path}} {{self.headers}}\\n")
        self.send_response(400)
        self.end_headers()
        self.wfile.write(b"{PRIVATE}")
    do_GET = do_POST = do_HEAD = do_PUT = answer
http.server.ThreadingHTTPServer(("10.50.0.1", {PORT}), Service).serve_forever()
"""


def holder_of(cluster: Cluster) -> str:
    return cluster.kubectl("get", "lease", "pinnace-bridge", "-o", "jsonpath={.spec.holderIdentity}")


@pytest.fixture(scope="module", autouse=True)
def first(bridged: Cluster) -> str:
    """The bridge that leads at the beginning."""
    return str(bridged.until("the bridge to lead", lambda: holder_of(bridged)))


@pytest.fixture(scope="module")
def tenant(bridged: Cluster) -> Iterator[Cluster]:
    bridged.kubectl("create", "namespace", NAMESPACE)
    yield replace(bridged, namespace=NAMESPACE)
    left = bridged.kubectl("get", "slj", "-o", "name").split()
    mine = [name for name in left if not name.endswith("/late-bridge")]  # which other tests look at
    bridged.kubectl("delete", *mine, "--timeout=100s")
    bridged.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def asked(bridged: Cluster) -> Iterator[Path]:
    """What a service of the login host was asked."""
    alice = bridged.alice
    name, noted = alice.write("service.py", SERVICE), alice.home / "asked.txt"
    silent = subprocess.DEVNULL
    process = alice.bed.popen(["/opt/pinnace/bin/python3", name], user=alice.name, stdout=silent, stderr=silent)
    try:
        wait_until("the service", lambda: alice.run("curl", "-s", LISTENER, code=None).returncode == 0, limit=60)
        noted.write_text("")
        yield noted
    finally:
        process.terminate()
        process.wait(30)


def rejected(cluster: Cluster, name: str) -> str:
    """Why a job was never submitted."""
    status = cluster.finished(name)
    assert status["state"] == "REJECTED", status
    assert "jobID" not in status
    return str(conditions(status)["Failed"]["message"])


def works(cluster: Cluster, name: str) -> None:
    """The bridge still does what it is for, in time."""
    begun = time.monotonic()
    cluster.apply(slurmjob(name, "true", logs=False))
    assert cluster.finished(name, 60)["state"] == "COMPLETED"
    assert time.monotonic() - begun < 45


# --- what goes to sbatch ----------------------------------------------------------------------------------------


def test_variables_of_a_job_are_not_those_of_sbatch(bridged: Cluster) -> None:
    alice = bridged.alice
    alice.run("mkdir", "-p", "evil")
    alice.write("evil/sbatch", '#!/bin/sh\nhostname >>/home/alice/evil/ran\nexec /usr/bin/sbatch "$@"\n', 0o755)
    variables = {"PATH": "/home/alice/evil:/usr/bin:/bin", "SLURM_CONF": "/nonexistent", "SBATCH_PARTITION": "nope",
                 "LD_PRELOAD": "/home/alice/evil/library.so", "IFS": "/", "script": "x",
                 "MANY": "a'b\n$(id)`id`\\"}  # fmt: skip
    env = [{"name": name, "value": value} for name, value in variables.items()]
    bridged.apply(slurmjob("environs", 'echo "$PATH $MANY"', env=env, arguments=["a\nb", "$(touch ~/evil/ran)"]))
    status = bridged.finished("environs")
    assert status["state"] == "COMPLETED", status
    assert not (alice.home / "evil" / "ran").exists()
    output = (alice.home / status["stdout"].removeprefix("/home/alice/")).read_text()
    assert "/home/alice/evil:/usr/bin:/bin a'b\n$(id)`id`\\" in output  # the job itself has them as they are


def test_options_that_would_do_more_than_submit(bridged: Cluster) -> None:
    bridged.alice.write("nodes", "n1\n")
    flags = {
        "nodefile": "--nodefile=/home/alice/nodes",
        "nodelist": "--nodelist=/home/alice/nodes",
        "exports": "--export-file=/home/alice/nodes",
        "other-user": "--uid=0",
        "waits": "--wait",
        "tests": "--test-only",
        "short": "--comm=pinnace-bridge:other/1",
        "empty": "--job-name=",
        "mails": "--mail-user=-Sroot",
    }
    jobs = [slurmjob(f"flag-{name}", "true", flags=[flag], logs=False) for name, flag in flags.items()]
    bridged.apply(*jobs, slurmjob("flag-directive", "#SBATCH --nodefile=/home/alice/nodes\ntrue"))
    for name in (*flags, "directive"):
        assert rejected(bridged, f"flag-{name}")
    script = "#PBS -N other\n#BSUB -J other\n#SBATCH --job-name=mine\ntrue"  # sbatch reads these too
    bridged.apply(slurmjob("flag-words", script, logs=False))
    number = str(bridged.finished("flag-words")["jobID"])
    argv = ["squeue", "--states=all", "--noheader", "--format=%j", "--jobs", number]
    assert bridged.alice.run(*argv).stdout.strip() == "mine"


# --- rows, numbers and notes that are not what they seem --------------------------------------------------------


def test_comments_that_forge_rows_blind_nobody(bridged: Cluster) -> None:
    words = {"comment": "x\x1fRUNNING", "jobName": "x\n1\x1fpinnace-bridge:u/1", "account": "a\u2028b"}
    bridged.apply(*(slurmjob(f"forged-{name.lower()}", "true", options={name: text}) for name, text in words.items()))
    for name in words:
        assert "control character" in rejected(bridged, f"forged-{name.lower()}")
    # Jobs that the bridge did not submit may say anything.
    comment = "pinnace-bridge:u/1\x1f\x1f\n7\x1fpinnace-bridge:u/1\x1fNOSTATE\x1f"
    argv = ["sbatch", "--parsable", "--mem=50M", f"--comment={comment}", "--wrap=sleep 60", "--output=/dev/null"]
    number = bridged.alice.run(*argv).stdout.strip()
    works(bridged, "seeing")
    bridged.alice.run("scancel", number)


def test_a_number_in_a_status_is_no_proof(bridged: Cluster) -> None:
    """Whoever may write the status of an object cannot have another job cancelled by it."""
    argv = ["sbatch", "--parsable", "--mem=50M", "--wrap=sleep 300", "--output=/dev/null"]
    victim = bridged.alice.run(*argv).stdout.strip()
    bridged.apply(slurmjob("thief", "sleep 300", logs=False), slurmjob("canceller", "sleep 300", logs=False))
    own = {name: str(bridged.state(name, "RUNNING")["jobID"]) for name in ("thief", "canceller")}
    patch = json.dumps({"status": {"jobID": int(victim)}})
    for name in own:
        bridged.kubectl("patch", "slj", name, "--subresource=status", "--type=merge", "-p", patch)
    bridged.kubectl("patch", "slj", "canceller", "--type=merge", "-p", '{"spec":{"cancel":true}}')
    bridged.kubectl("delete", "slj", "thief", "canceller", "--timeout=100s")
    running = bridged.alice.run("squeue", "--noheader", "--states=RUNNING,PENDING", "--format=%i").stdout.split()
    bridged.alice.run("scancel", victim)
    assert victim in running
    assert own["thief"] not in running  # the object's own job is still ended


def test_a_note_that_is_none_stops_nothing(bridged: Cluster) -> None:
    job = slurmjob("noted", "true", logs=False)
    job["metadata"]["annotations"] = {"pinnace.dev/submitting": "no note at all"}
    old = slurmjob("noted-long-ago", "true", logs=False)
    old["metadata"]["annotations"] = {"pinnace.dev/submitting": "1 0 x"}
    bridged.apply(job, old)
    for name in ("noted", "noted-long-ago"):
        assert bridged.finished(name)["state"] == "COMPLETED"


# --- servers ----------------------------------------------------------------------------------------------------


def test_a_secret_does_not_make_the_bridge_call_others(tenant: Cluster, asked: Path) -> None:
    mine: Any = {"namespace": NAMESPACE, "logs": False}
    credentials = {"username": "alice", "token": "a.token.of-a-tenant"}
    place = {"endpoint": f"10.50.0.1:{PORT}", "secure": False, "secret": "s3-secret", "bucket": "bucket"}
    binary = secret("binary", NAMESPACE)
    binary["data"] = {"username": base64.b64encode(b"\xff\xfe").decode()}
    good = {"username": "alice", "token": token(tenant.alice)}
    tenant.apply(
        secret("elsewhere", NAMESPACE, url=LISTENER, **credentials),
        secret("site", NAMESPACE, url="http://login:6820", **good),
        secret("lines", NAMESPACE, url="http://login:6820", **{**good, "username": "alice\r\nX-Y: z"}),
        s3_secret(NAMESPACE),
        binary,
        slurmjob("ssrf-secret", "true", cluster={"secret": "elsewhere"}, **mine),
        slurmjob("ssrf-token", "true", cluster={"secret": "site", "url": LISTENER}, **mine),
        slurmjob("ssrf-path", "true", cluster={"secret": "site", "url": "http://login:6820@10.50.0.1:7171"}, **mine),
        slurmjob("ssrf-lines", "true", cluster={"secret": "lines"}, **mine),
        slurmjob("ssrf-binary", "true", cluster={"secret": "binary"}, **mine),
        slurmjob(
            "ssrf-s3", "true", cluster={"secret": "site"}, inputs=[{"to": "x", "s3": {**place, "key": "k"}}], **mine
        ),
    )
    said = {name: rejected(tenant, f"ssrf-{name}") for name in ("secret", "token", "path", "lines", "binary", "s3")}
    assert PRIVATE not in str(said)
    assert "--slurmrestd" in said["secret"]
    assert "--s3" in said["s3"]
    assert asked.read_text() == ""


def test_names_that_lead_elsewhere(tenant: Cluster) -> None:
    elsewhere = "../../default/secrets/slurm-secret"
    assert "should match" in tenant.refused(
        slurmjob("named", "true", namespace=NAMESPACE, cluster={"secret": elsewhere})
    )
    source = {"configMap": {"name": "a?watch=1", "key": "x"}}
    job = slurmjob("named", "true", namespace=NAMESPACE, scriptFrom=source)
    del job["spec"]["script"]
    assert "should match" in tenant.refused(job)
    inline = {"scriptlocation": "inline", "jobscript": "true"}
    named = bridge_job("named", inline, resourcesecret=elsewhere)
    named["metadata"]["namespace"] = NAMESPACE
    tenant.apply(named)
    status: Object = tenant.until("a refusal", lambda: tenant.get("bridgejob", "named").get("status"))
    assert status["jobstatus"] == "FAILED"
    assert "secret" in status["message"]


def test_a_config_map_of_somebody_else_is_left_alone(tenant: Cluster) -> None:
    metadata = {"name": "precious-bridge-cm", "namespace": NAMESPACE}
    precious = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"mine": "1"}}
    job = bridge_job("precious", {"scriptlocation": "inline", "jobscript": "true"})
    job["metadata"]["namespace"] = NAMESPACE
    tenant.apply(precious)
    tenant.apply(job)
    status: Object = tenant.until("a refusal", lambda: tenant.get("bridgejob", "precious").get("status"))
    assert "another ConfigMap" in status["message"]
    assert tenant.get("configmap", "precious-bridge-cm")["data"] == {"mine": "1"}


# --- files and volumes ------------------------------------------------------------------------------------------


def test_volumes_that_a_tenants_pod_could_not_have(bridged: Cluster) -> None:
    token_of_account = {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    volumes: dict[str, Object] = {
        "root": {"hostPath": {"path": "/"}},
        "near": {"hostPath": {"path": "/home/alice/wlm-results-not"}},
        "nfs": {"nfs": {"server": "10.50.0.1", "path": "/"}},
        "token": token_of_account,
        "two": {"emptyDir": {}, "hostPath": {"path": "/"}},
    }
    inputs = {name: [{"to": "x", "volume": volume, "path": "etc"}] for name, volume in volumes.items()}
    bridged.apply(*(slurmjob(f"volume-{name}", "true", inputs=entry) for name, entry in inputs.items()))
    for name in volumes:
        assert "volume: " in rejected(bridged, f"volume-{name}")
    results = [{"from": "*.out", "volume": {"hostPath": {"path": "/home/alice"}}, "path": "x"}]
    bridged.apply(slurmjob("volume-out", "true", results=results, logs=False))
    status = bridged.finished("volume-out")
    assert "--host-path" in conditions(status)["Collected"]["message"]
    assert "volume-" not in bridged.kubectl("get", "pods", "-o", "name")


def test_helper_pods_are_such_as_tenants_may_have(tenant: Cluster) -> None:
    """But for the directories of the node, which only a namespace that allows them has."""
    metadata = {"name": "x", "namespace": "baseline", "uid": "00000000-0000-0000-0000-000000000000"}
    body = {"apiVersion": "pinnace.dev/v1alpha1", "kind": "SlurmJob", "metadata": metadata}
    entry = {"volume": {"emptyDir": {}}, "path": "x"}

    def files(level: str, identity: pods.PodUser | None) -> list[str]:
        made = (
            pods.copier(SlurmJob(body), "x-result-0", IMAGE, directory="/there", entry=entry, what=["y"], out=True,
                        user=identity),
            pods.follower(SlurmJob(body), IMAGE, ["/there/x.out"], "/home/alice/mark", user=identity),
        )  # fmt: skip
        for pod in made:
            for volume in pod["spec"]["volumes"]:
                if volume.pop("hostPath", None):
                    volume["emptyDir"] = {}
            del pod["metadata"]["ownerReferences"]
        return [tenant.alice.write(f"{level}{number}.json", json.dumps(pod)) for number, pod in enumerate(made)]

    tenant.kubectl("create", "namespace", "baseline")
    try:
        # In a cluster of pinnace's root in a pod is the user, so "restricted" is for the bridge's pods elsewhere.
        for level, identity in (("baseline", None), ("restricted", pods.PodUser(uid=1000, gid=1000))):
            label = f"pod-security.kubernetes.io/enforce={level}"
            tenant.kubectl("label", "--overwrite", "namespace", "baseline", label)
            for name in files(level, identity):
                tenant.kubectl("create", "--dry-run=server", "-f", name)
    finally:
        tenant.kubectl("delete", "namespace", "baseline", "--wait=false")


def test_links_in_results_lead_nowhere(bridged: Cluster, s3: str) -> None:
    alice = bridged.alice
    alice.write("private", "a private file\n", 0o600)
    place = {"endpoint": s3, "secure": False, "secret": "s3-secret", "bucket": "stolen"}
    leave = "mkdir -p d; echo good > d/good; ln -s ~/private d/link; ln -s /home/alice d/home; ln -s ../../.. up"
    bridged.apply(
        s3_secret(),
        slurmjob("links-s3", leave, results=[{"from": "d", "s3": place}], logs=False),
        slurmjob("links-up", leave, results=[{"from": "up/private", "directory": "~/stolen"}], logs=False),
        slurmjob("links-through", leave, results=[{"from": "d/home/private", "s3": place}], logs=False),
        slurmjob("links-kept", leave, results=[{"from": "d", "directory": "~/stolen"}], logs=False),
    )
    for name in ("links-s3", "links-up", "links-through"):
        assert "outside" in conditions(bridged.finished(name))["Collected"]["message"]
    assert conditions(bridged.finished("links-kept"))["Collected"]["status"] == "True"
    assert (alice.home / "stolen" / "d" / "link").is_symlink()  # as the job left it
    stolen = [path for path in (alice.home / "s3" / "stolen").rglob("*") if path.is_file()]
    assert not any(path.read_text() == "a private file\n" for path in stolen)
    assert not (alice.home / "stolen" / "private").exists()


def test_fifos_stop_no_worker(bridged: Cluster) -> None:
    """Opening one waits for ever: four of these once stopped the bridge for everybody."""
    alice = bridged.alice
    alice.run("mkdir", "-p", "pipes")
    alice.run("mkfifo", "pipes/in", "pipes/script")
    where = {"workingDirectory": "/home/alice/pipes"}
    staged = [
        slurmjob(f"pipe-{number}", "cat in", options=where, inputs=[{"to": "in", "text": "x"}], logs=False)
        for number in range(4)
    ]
    scripts = [
        slurmjob(f"pipe-script-{number}", "", scriptFrom={"path": "/home/alice/pipes/script"}) for number in (1, 2)
    ]
    for job in scripts:
        del job["spec"]["script"]
    bridged.apply(*staged, *scripts, slurmjob("pipe-from", "true", inputs=[{"to": "x", "from": "/home/alice/pipes"}]))
    works(bridged, "after-pipes")
    assert bridged.finished("pipe-0")["state"] == "COMPLETED"
    assert "no regular file" in rejected(bridged, "pipe-script-1")
    assert "no regular file" in rejected(bridged, "pipe-from")


def test_places_on_the_bridges_host(bridged: Cluster) -> None:
    job = slurmjob("place-script", "", scriptFrom={"path": "/proc/self/environ"})
    del job["spec"]["script"]
    bridged.apply(
        job,
        slurmjob("place-input", "true", inputs=[{"to": "x", "from": "/proc/self/environ"}]),
        slurmjob("place-directory", "true", options={"workingDirectory": "/proc/self/cwd/x"}),
        slurmjob("place-long", "true", options={"output": "x" * 1001}),
        slurmjob("place-output", "true", options={"output": "/tmp/place-%j.out"}),
    )
    for name in ("script", "input", "directory"):
        assert "kernel's" in rejected(bridged, f"place-{name}")
    assert "longer than" in rejected(bridged, "place-long")
    # A pod that follows output in a directory of somebody else would show that directory of the node.
    assert "not a directory of the bridge's user" in conditions(bridged.finished("place-output"))["Logs"]["message"]


# --- the bridge itself ------------------------------------------------------------------------------------------


def test_whoever_takes_a_lease_harms_only_that_namespace(tenant: Cluster) -> None:
    """Tenants may often write Leases of their own namespace."""
    lease = ("lease", "pinnace-bridge", "-n", NAMESPACE)

    def holder() -> str:
        return tenant.kubectl("get", *lease, "-o", "jsonpath={.spec.holderIdentity}")

    def take(name: str) -> None:
        patch = json.dumps({"spec": {"holderIdentity": name}})
        tenant.kubectl("patch", *lease, "--type=merge", "-p", patch)

    mine = tenant.until("the bridge to lead", holder)
    host, place, *_ = mine.split("/")
    for name in (f"{host}/{place}/no-number/1", "a-tenant"):
        take(name)
        time.sleep(5)  # longer than the bridge takes to look at its Lease
    works(replace(tenant, namespace="default"), "led-on")
    take("")
    assert tenant.until("the bridge to lead again", lambda: holder() == mine)


def test_nothing_of_it_was_restarted(tenant: Cluster, first: str) -> None:
    """After all of the above: one bridge, which has led since the beginning, and no large one."""
    holder = holder_of(tenant)
    pid = holder.split("/")[2]
    status = dict(line.split(":", 1) for line in tenant.alice.run("cat", f"/proc/{pid}/status").stdout.splitlines())
    assert int(status["VmRSS"].split()[0]) < 300 << 10
    assert int(status["Threads"]) < 60
    assert holder == first
    assert s3_server.SECRET not in (tenant.alice.home / "bridge.log").read_text()
