"""What is wrong is said where the user looks, and nothing of it stays in Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from e2e.bridge.conftest import conditions, slurmjob

if TYPE_CHECKING:
    from e2e.bridge.conftest import Cluster, Object

pytestmark = pytest.mark.bed


def without_script(job: Object, **source: str | Object) -> Object:
    del job["spec"]["script"]
    job["spec"]["scriptFrom"] = source
    return job


def test_what_the_api_refuses(bridged: Cluster) -> None:
    assert "exactly one of script" in bridged.refused(slurmjob("bad", "x", scriptFrom={"path": "/x"}))
    escape = slurmjob("bad", "x", results=[{"from": "../other", "directory": "/tmp"}])
    assert "must be a path below" in bridged.refused(escape)
    volume = [{"from": "x", "volume": {"emptyDir": {}}, "path": "a/../../b"}]
    assert "must be a path below" in bridged.refused(slurmjob("bad", "x", results=volume))
    assert "unknown field" in bridged.refused(slurmjob("bad", "x", options={"nods": 2}))


def test_a_job_cannot_be_changed_while_it_runs(bridged: Cluster) -> None:
    job = slurmjob("fixed", "while [ ! -e go ]; do sleep 0.2; done")
    bridged.apply(job)
    directory = bridged.state("fixed", "RUNNING")["workingDirectory"]
    for spec in ({"script": "#!/bin/sh\nother\n"}, {"options": {"nodes": 2}}, {"retries": 3}, {"flags": ["--x"]}):
        assert "cannot be changed" in bridged.refused({**job, "spec": {**job["spec"], **spec}})
    bridged.alice.run("touch", f"{directory}/go")
    assert bridged.finished("fixed")["state"] == "COMPLETED"


def test_what_cannot_be_submitted(bridged: Cluster) -> None:
    bridged.alice.run("ln", "-sfn", "/etc", "escape")
    bridged.apply(
        without_script(slurmjob("no-script", ""), path="/home/alice/absent.sh"),
        slurmjob("refused", "true", options={"partition": "nope"}),
        slurmjob("flags", "true", flags=["--no-such-flag"]),
        slurmjob("nowhere", "true", options={"workingDirectory": "/nowhere/x"}),
        slurmjob("escapes", "true", options={"workingDirectory": "/home/alice"},
                 inputs=[{"to": "escape/passwd", "text": "x"}]),
        slurmjob("no-volume", "true", inputs=[{"to": "x", "volume": {"emptyDir": {}}, "path": "sub"}]),
    )  # fmt: skip
    said = {
        "no-script": "/home/alice/absent.sh",
        "refused": "invalid partition specified: nope",
        "flags": "not an option that this bridge passes",
        "nowhere": "/nowhere",
        "escapes": "is outside /home/alice",
        "no-volume": "pod no-volume-input-0",
    }
    for name, words in said.items():
        status = bridged.finished(name)
        assert (status["state"], conditions(status)["Failed"]["reason"]) == ("REJECTED", "Rejected")
        assert words in conditions(status)["Failed"]["message"]
        assert "jobID" not in status


def test_what_is_missing_may_still_come(bridged: Cluster) -> None:
    bridged.apply(without_script(slurmjob("patient", ""), configMap={"name": "late", "key": "job.sh"}))
    assert "configmap late" in str(bridged.state("patient", "WAITING")["message"])
    bridged.kubectl("create", "configmap", "late", "--from-literal=job.sh=echo here")
    assert bridged.finished("patient")["state"] == "COMPLETED"


def test_results_that_are_missing_or_lead_out(bridged: Cluster) -> None:
    bridged.apply(
        slurmjob("no-result", "true", results=[{"from": "absent", "directory": "/home/alice/x"}]),
        slurmjob("leads-out", "ln -s /etc/passwd stolen", results=[{"from": "stolen", "directory": "/home/alice/x"}]),
    )
    for name, words in (("no-result", "no result absent"), ("leads-out", "is outside")):
        status = bridged.finished(name)
        assert conditions(status)["Failed"]["reason"] == "ResultsMissing"
        assert words in conditions(status)["Collected"]["message"]
    assert not (bridged.alice.home / "x").exists()
