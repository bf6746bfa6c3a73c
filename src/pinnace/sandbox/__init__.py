"""What an ordinary user can make of namespaces and mounts: what nodes, and ranks, live in."""
