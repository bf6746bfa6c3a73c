"""Slurm jobs as Kubernetes resources: SlurmJob, and the predecessors' BridgeJob, SlurmJob and WlmJob."""
