"""The processes of a node: their configuration and commands, and what of them is our own."""
