"""From pods to sbatch."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from pinnace import interpreter
from pinnace.errors import UsageError
from pinnace.podjobs.settings import PodJobSettings
from pinnace.podjobs.submission import claimed, comment, job_options, submission, submitted_for, tag
from unit.podjobs.samples import container, pod

INTERPRETER = shlex.quote(interpreter.__file__)
PLAIN = PodJobSettings(overhead_mib=100, default_memory_mib=200)


def options(
    body: dict[str, Any], settings: PodJobSettings = PLAIN, owners: list[dict[str, Any]] | None = None, *given: str
) -> dict[str, str | None]:
    return job_options(body, owners or [], settings, given)


def test_a_pod_that_asks_for_nothing() -> None:
    assert options(pod()) == {"job-name": "one", "cpus-per-task": "1", "mem": "300M"}


def test_requests_and_what_the_node_itself_needs() -> None:
    found = options(pod(containers=[container("1500m", "1Gi")]))
    assert (found["cpus-per-task"], found["mem"]) == ("2", "1124M")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (PodJobSettings(memory="per-cpu", overhead_mib=0), {"mem-per-cpu": "512M"}),
        (PodJobSettings(memory="none", exclusive=True), {"exclusive": None}),
    ],
)
def test_sites_that_refuse_mem(settings: PodJobSettings, expected: dict[str, str | None]) -> None:
    found = options(pod(containers=[container("2", "1Gi")]), settings)
    assert found == {"job-name": "one", "cpus-per-task": "2", **expected}


def test_gpus_and_mapped_resources() -> None:
    body = pod(containers=[container(extended={"nvidia.com/gpu": "2", "example.com/fpga": "1"})])
    assert options(body, PodJobSettings(resources={"example.com/fpga": "fpga:u280"}))["gres"] == "fpga:u280:1,gpu:2"
    with pytest.raises(UsageError, match=r"example.com/fpga is not mapped"):
        options(body)


def test_a_resource_that_every_host_has_is_not_asked_of_slurm() -> None:
    body = pod(containers=[container(extended={"rdma/hca": "1"})])
    assert "gres" not in options(body)
    assert options(body, PodJobSettings(resources={"rdma/hca": "nic"}))["gres"] == "nic:1"


def test_scratch_and_deadline() -> None:
    scratch = container()
    scratch["resources"]["requests"]["ephemeral-storage"] = "2Gi"
    found = options(pod(containers=[scratch], activeDeadlineSeconds=600))
    assert (found["tmp"], found["time"]) == ("2048M", "12")


def test_selectors_and_affinity() -> None:
    terms = [{"matchExpressions": [
        {"key": "feature.pinnace.dev/ib", "operator": "Exists"},
        {"key": "pinnace.dev/partition", "operator": "In", "values": ["a", "b"]},
        {"key": "pinnace.dev/host", "operator": "NotIn", "values": ["n1", "n2"]},
    ]}]  # fmt: skip
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    selector = {"feature.pinnace.dev/rack1": "true", "pinnace.dev/partition": "b", "kubernetes.io/os": "linux"}
    found = options(pod(nodeSelector=selector, affinity=affinity))
    assert (found["constraint"], found["partition"], found["exclude"]) == ("rack1&ib", "b", "n1,n2")


@pytest.mark.parametrize("selector", [{"disktype": "ssd"}, {"kubernetes.io/hostname": "n1"}])
def test_selectors_that_mean_nothing_to_slurm_are_refused(selector: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="means nothing to Slurm"):
        options(pod(nodeSelector=selector))


@pytest.mark.parametrize("operator", ["In", "NotIn"])
def test_affinity_names_no_file_of_the_owners(operator: str) -> None:
    """Not every version of the API looks at these, and sbatch reads a list of hosts from whatever has a slash in it."""
    expression = {"key": "pinnace.dev/host", "operator": operator, "values": ["/home/alice/.ssh/id_rsa"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    with pytest.raises(UsageError, match="open files"):
        options(pod(affinity=affinity))


def test_priorities() -> None:
    settings = PodJobSettings(priorities={"urgent": ["--qos=high"]})
    assert options(pod(priorityClassName="urgent", priority=1000), settings)["qos"] == "high"
    assert options(pod(priorityClassName="low", priority=-50), settings)["nice"] == "50"
    assert "nice" not in options(pod(priority=1000))


def test_what_is_nearer_to_the_pod_counts_more() -> None:
    owner = {
        "kind": "Job",
        "metadata": {"name": "pi", "annotations": {"pinnace.dev/flags": "--mem=1G --time=5 -A one"}},
    }
    body = pod(annotations={"pinnace.dev/flags": "--mem=2G"})
    found = options(body, PLAIN, [owner], "--time=9", "--partition=main", "--account=zero")
    assert found == {
        "job-name": "one", "cpus-per-task": "1", "mem": "2G", "time": "5", "partition": "main", "account": "one",
    }  # fmt: skip


def test_names_and_comment_tell_whose_it_is() -> None:
    owners = [
        {"kind": "ReplicaSet", "metadata": {"name": "web-1"}},
        {"kind": "Deployment", "metadata": {"name": "web"}},
    ]
    text = comment("mine", pod(), owners)
    assert text == "pinnace:mine:uid-one:default/one:Deployment/web"
    assert text.startswith(tag("mine", "uid-one"))
    assert claimed(text, "mine") == "uid-one"
    assert claimed(text, "other") is None
    assert claimed("pinnace:mine", "mine") is None


def test_the_line_that_submitted_a_job_tells_too_and_pods_cannot_choose_its_end() -> None:
    forged = pod(annotations={"pinnace.dev/flags": "--time=5"}, containers=[])
    made = submission(forged, [], PLAIN, cluster="mine", directory=Path("/a b"), python="python3")
    line = " ".join(["sbatch", "--parsable", "--job-name=x --comment=pinnace:mine:uid-two:a/b", *made.options])
    assert submitted_for(line, "mine") == "uid-one"
    assert submitted_for(line, "other") is None
    assert submitted_for("sbatch '--comment=pinnace:mine:uid-one:a/b'", "mine") == "uid-one"
    for other in ("", "sbatch thesis.sh", f"{line} thesis.sh", "sbatch --comment=pinnace:mine"):
        assert submitted_for(other, "mine") is None


def test_the_job_is_the_agent_itself() -> None:
    made = submission(
        pod(nodeSelector={"feature.pinnace.dev/x": "true"}),
        [],
        PLAIN,
        cluster="mine",
        directory=Path("/home/a b/c"),
        python="/usr/bin/python3",
    )
    assert made.script.splitlines()[0] == "#!/bin/sh"
    assert made.script.splitlines()[-1] == (
        f"exec /usr/bin/python3 -I {INTERPRETER} pinnace.node --cluster '/home/a b/c' --join --pod default/one/uid-one "
        "--label=feature.pinnace.dev/x=true"
    )
    assert "--no-requeue" in made.options
    assert "--output=/home/a b/c/logs/job-%j.log" in made.options
    assert "--chdir=/home/a b/c" in made.options


def test_settings_are_checked() -> None:
    with pytest.raises(UsageError, match="no setting 'colour'"):
        PodJobSettings.from_json({"colour": "red"})
    with pytest.raises(UsageError, match="memory cannot be"):
        PodJobSettings.from_json({"memory": "much"})
    with pytest.raises(UsageError, match="max_jobs cannot be"):
        PodJobSettings.from_json({"max_jobs": "many"})
    assert PodJobSettings.from_json(PLAIN.to_json()) == PLAIN


def test_containers_that_mpiexec_starts() -> None:
    def script(*annotations: dict[str, str]) -> str:
        own, *owners = [{"metadata": {"name": "x", "annotations": notes}, "kind": "Job"} for notes in annotations]
        body = pod(annotations=own["metadata"]["annotations"])  # type: ignore[index]
        return submission(body, owners, PLAIN, cluster="c", directory=Path("/d"), python="python").script

    hpk = "slurm-job.hpk.io/mpi-flags"
    assert "--mpi-container=main '--mpi-flags=--bind-to core'" in script({hpk: "--bind-to core"})
    assert "--mpi-flags=-x" in script({}, {hpk: "-x"})
    assert "mpi" not in script({hpk: "true"}, {})
    assert "mpi" not in script({})
    with pytest.raises(UsageError, match="No closing quotation"):
        script({hpk: "'"})


HELD = PodJobSettings(restricted=True, flags=["--licence-server"])


@pytest.mark.parametrize(
    "text",
    ["--account=x", "-A x", "--qos=high", "--reservation=x", "--reboot", "--nodes=2", "--mail-user=x"],
)
def test_pods_of_a_restricted_cluster_say_what_they_need_and_no_more(text: str) -> None:
    body = pod(annotations={"pinnace.dev/flags": text})
    assert options(body)
    with pytest.raises(UsageError, match="is not for pods of a restricted cluster"):
        options(body, HELD)
    owner = {"metadata": {"annotations": {"pinnace.dev/flags": text}}}
    with pytest.raises(UsageError, match="is not for pods of a restricted cluster"):
        options(pod(), HELD, [owner])


def test_what_pods_of_a_restricted_cluster_may_say() -> None:
    body = pod(annotations={"pinnace.dev/flags": "--time=5 --gres=gpu:1 --licence-server=a"})
    found = options(body, HELD, [], "--account=mine")
    assert (found["time"], found["gres"], found["licence-server"], found["account"]) == ("5", "gpu:1", "a", "mine")
    ranks = pod(annotations={"pinnace.dev/mpi-flags": "--tag-output"})
    with pytest.raises(UsageError, match="ranks"):
        submission(ranks, [], HELD, cluster="c", directory=Path("/d"), python="python3")
