"""GPUs and other devices of a node: what Slurm gave to the job, and how containers get it.

The agent finds out what the node offers (``offering``), init describes it for containerd (``cdi``), and a service of
the node offers it to the kubelet (``plugin``).
"""
