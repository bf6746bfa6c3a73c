"""The control plane on the first node: certificates, processes, and the objects that every cluster starts with."""
