"""Ranks: processes of one container on all hosts of a pod's allocation, started by Slurm.

A pod whose job has several nodes runs on the first of them, as any pod does. In its containers ``srun``, ``mpirun`` and
``mpiexec`` are a small program (``launcher``) that asks the node's agent (``server``):

    container           agent's helper                       every host of the job
    ─────────           ──────────────                       ─────────────────────────────────────────────
    srun ── socket ───► server ── srun (Slurm's own) ──────► rank      enters the world, executes the program
                          │                                    │
                          └────── companion ◄── copies ──────► world   mount and user namespace of the ranks

A world is the mount and user namespace of a container's ranks on one host. It has the container's root and volumes, and
the host's own network, processes and devices. On the first host it has the container's root itself; the companions of
the other hosts get a copy of it.
"""
