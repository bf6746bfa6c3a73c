"""The kubeconfig for a laptop: ssh and sh, no secret, nothing that a shell could misread. ssh is a script here."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from pinnace.cluster.credential import credential_argv
from pinnace.cluster.over_ssh import ssh_kubeconfig, ssh_script
from pinnace.cluster.tunnel_start import LocalAddress
from pinnace.errors import UsageError

OWN = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "pinnace-x", "cluster": {"server": "https://127.9.8.7:23456", "tls-server-name": "secret"}}],
    "users": [{"name": "pinnace-x", "user": {"client-key-data": "a2V5"}}],
    "contexts": [{"name": "pinnace-x", "context": {"cluster": "pinnace-x", "user": "pinnace-x"}}],
    "current-context": "pinnace-x",
}
SSH = """\
#!/bin/sh
printf '%s\\n' "$@" >> "$HOME/calls"
[ -e "$HOME/fail-once" ] && { rm "$HOME/fail-once"; exit 255; }
for last; do :; done
exec sh -c "$last"
"""


def run(script: str, home: Path) -> subprocess.CompletedProcess[str]:
    (home / "ssh").write_text(SSH)
    (home / "ssh").chmod(0o755)
    environment = {"HOME": str(home), "PATH": f"{home}:{os.environ['PATH']}"}
    return subprocess.run(
        ["sh", "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=20
    )


def test_it_has_no_secret_and_leads_through_the_forwarded_port() -> None:
    document = ssh_kubeconfig(OWN, "alice@login", ["true"])
    assert "a2V5" not in json.dumps(document)
    server = document["clusters"][0]["cluster"]["server"]
    (_, script) = document["users"][0]["user"]["exec"]["args"]
    assert f"-L {server.removeprefix('https://')}:127.9.8.7:23456 alice@login" in script


def test_ssh_gets_the_command_as_it_is_and_gives_back_what_it_prints(tmp_path: Path) -> None:
    words = ["printf", "%s|", "a b", "$HOME", "it's", '"']
    script = ssh_script("alice@login.site.org", port=22222, target="127.9.8.7:23456", command=words)
    result = run(script, tmp_path)
    assert (result.returncode, result.stdout) == (0, "a b|$HOME|it's|\"|")
    calls = (tmp_path / "calls").read_text().splitlines()
    assert {"-n", "ControlMaster=auto", "127.0.0.1:22222:127.9.8.7:23456", "alice@login.site.org"} <= set(calls)
    assert f"ControlPath={tmp_path}/.ssh/pinnace-22222" in calls


def test_a_failure_of_ssh_itself_is_tried_again_and_one_of_the_command_is_not(tmp_path: Path) -> None:
    (tmp_path / "fail-once").touch()
    script = ssh_script("login", port=22222, target="a:1", command=["echo", "ok"])
    assert run(script, tmp_path).stdout == "ok\n"
    (tmp_path / "calls").unlink()
    failing = ssh_script("login", port=22222, target="a:1", command=["sh", "-c", "exit 3"])
    assert run(failing, tmp_path).returncode == 3
    assert (tmp_path / "calls").read_text().count("ControlMaster=auto") == 1


@pytest.mark.parametrize("login", ["", "-oProxyCommand=x", "a b", "a;b", "$(x)", "a\nb"])
def test_what_is_no_host_is_refused(login: str) -> None:
    with pytest.raises(UsageError):
        ssh_script(login, port=1, target="a:1", command=["true"])


def test_the_command_on_the_login_node() -> None:
    direct = credential_argv(Path("/c"), None)
    assert direct[-2:] == ["--cluster", "/c"]
    assert credential_argv(Path("/c"), LocalAddress(host="127.1.2.3", port=5))[-1] == "127.1.2.3:5"
