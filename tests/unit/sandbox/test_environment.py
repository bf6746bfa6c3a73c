from __future__ import annotations

import json
import subprocess
import sys

from pinnace.sandbox.environment import node_environment

SCRIPT = """
import ctypes, json, os, subprocess
from pathlib import Path
from pinnace.sandbox.environment import restrict_environment
restrict_environment()
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
child = subprocess.run(["env"], capture_output=True, text=True, check=True, timeout=10).stdout
shown = Path("/proc/self/environ").read_bytes().decode()
print(json.dumps([shown, child, getenv(b"HOME").decode(), os.environ["HOME"]]))
"""


def test_a_nodes_processes_get_what_they_need_and_no_secrets() -> None:
    needed = {"PATH": "/bin", "HOME": "/h", "LC_ALL": "C", "https_proxy": "p", "NO_PROXY": "n", "SSL_CERT_FILE": "/c",
              "SLURM_JOB_ID": "7", "PINNACE_SCRATCH": "/s", "LD_LIBRARY_PATH": "/l"}  # fmt: skip
    secrets = {"SLURM_JWT": "t", "AWS_SECRET_ACCESS_KEY": "t", "GITHUB_TOKEN": "t", "XDG_RUNTIME_DIR": "/run/user/1",
               "KUBECONFIG": "/k", "SSH_AUTH_SOCK": "/s", "GOPROXY": "https://user:password@proxy"}  # fmt: skip
    assert node_environment(needed | secrets) == needed


def test_what_is_not_kept_cannot_be_read_from_outside_either() -> None:
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/home/alice", "SLURM_JWT": "a-secret"}
    environment["PYTHONPATH"] = ":".join(sys.path)  # the tree under test
    argv = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True, timeout=30)
    shown, child, *home = json.loads(done.stdout)
    assert "a-secret" not in shown
    assert "a-secret" not in child
    assert "HOME=/home/alice" in child.splitlines()
    assert home == ["/home/alice"] * 2
