"""Files of jobs: what is inside, what is not; and the scripts of the pods, run for real."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from pinnace.bridge import pods, staging
from pinnace.bridge.slurmjob import SlurmJob

if TYPE_CHECKING:
    from pathlib import Path


def test_scripts_say_what_runs_them() -> None:
    assert staging.runnable("#!/bin/bash\nx") == "#!/bin/bash\nx"
    assert staging.runnable("x") == "#!/bin/sh\nx"


def test_a_follower_tells_everything_and_ends_like_the_job(tmp_path: Path) -> None:
    out, mark = tmp_path / "a job.out", tmp_path / "mark"
    out.write_bytes(b"first\n")
    variables = {"PATH": "/bin:/usr/bin", "many": "", "TMPDIR": str(tmp_path)}
    argv = ["sh", "-c", pods.FOLLOW, "follow", *map(pods.to_be_listed, (str(mark), str(tmp_path / "*.out")))]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=variables) as process:
        assert process.stdout
        assert process.stdout.readline() == b"first\n"
        with out.open("ab") as file:
            file.write(b"second\nwithout an end")
        mark.write_text("3\n")
        assert process.stdout.read() == b"second\nwithout an end"
        assert process.wait(30) == 3


def test_a_copier_copies_names_with_spaces(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "a b").write_text("x")
    argv = ["sh", "-c", pods.COPY, "copy", str(tmp_path / "from"), str(tmp_path / "to" / "there"), "a b"]
    subprocess.run(argv, check=True, timeout=30)
    assert (tmp_path / "to" / "there" / "a b").read_text() == "x"
    assert subprocess.run([*argv[:-1], "absent"], check=False, capture_output=True, timeout=30).returncode


def test_helpers_are_no_jobs_where_every_pod_is_one() -> None:
    body = {"metadata": {"name": "x", "namespace": "default", "uid": "u"}, "apiVersion": "a/v1", "kind": "SlurmJob"}
    pod = pods.follower(SlurmJob(body), "image", ["/there/x.out"], "/home/alice/mark")
    assert pod["metadata"]["annotations"] == {"pinnace.dev/run-as": "node"}
    assert pod["spec"]["tolerations"] == [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]
