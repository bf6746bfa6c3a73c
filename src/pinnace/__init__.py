"""Kubernetes, complete and unmodified, aboard Slurm: for people who have only a Slurm account."""

__version__ = "0.1.0"
