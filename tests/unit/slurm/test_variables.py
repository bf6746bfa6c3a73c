"""Which variables Slurm's commands are given."""

from __future__ import annotations

from pinnace.slurm.variables import IN_UTC, query_environment, site_environment, submission_environment


def test_the_users_defaults_for_squeue_do_not_hide_jobs_from_us() -> None:
    mine = {"SQUEUE_PARTITION": "gpu", "SCANCEL_INTERACTIVE": "1", "SLURM_CONF": "/c", "SLURM_JWT": "t", "HOME": "/h"}
    assert query_environment(mine) == {"SLURM_CONF": "/c", "SLURM_JWT": "t", "HOME": "/h"} | IN_UTC


def test_the_enclosing_jobs_words_stay_out_of_a_submission() -> None:
    mine = {"SLURM_JOB_ID": "1", "SLURM_MEM_PER_NODE": "5", "SLURM_CONF": "/c", "SBATCH_ACCOUNT": "a", "HOME": "/h"}
    assert submission_environment(mine) == {"SLURM_CONF": "/c", "SBATCH_ACCOUNT": "a", "HOME": "/h"}


def test_the_environment_of_a_service_is_not_its_jobs() -> None:
    given = {"PATH": "/bin", "HOME": "/h", "SLURM_CONF": "/c", "SLURM_JWT": "x", "AWS_SECRET_ACCESS_KEY": "x",
             "KUBECONFIG": "x", "SBATCH_ACCOUNT": "a", "LD_PRELOAD": "x", "SLURM_JOB_ID": "1"}  # fmt: skip
    assert set(site_environment(given)) == {"PATH", "HOME", "SLURM_CONF", "SBATCH_ACCOUNT"}
