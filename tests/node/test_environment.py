from __future__ import annotations

from pinnace.node.environment import of_node


def test_a_nodes_processes_get_what_they_need_and_no_secrets() -> None:
    needed = {"PATH": "/bin", "HOME": "/h", "LC_ALL": "C", "https_proxy": "p", "NO_PROXY": "n", "SSL_CERT_FILE": "/c",
              "SLURM_JOB_ID": "7", "PINNACE_SCRATCH": "/s", "LD_LIBRARY_PATH": "/l"}  # fmt: skip
    secrets = {"SLURM_JWT": "t", "AWS_SECRET_ACCESS_KEY": "t", "GITHUB_TOKEN": "t", "XDG_RUNTIME_DIR": "/run/user/1",
               "KUBECONFIG": "/k", "SSH_AUTH_SOCK": "/s", "GOPROXY": "https://user:password@proxy"}  # fmt: skip
    assert of_node(needed | secrets) == needed
