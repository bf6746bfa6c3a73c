"""Limits of containers that hold without cgroups: memory, CPUs, and what happens when the node runs out of memory."""
