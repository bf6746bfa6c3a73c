"""How a control plane grows: simulated nodes and their pods are added to a cluster, size by size, and it is measured.

`pinnace bench growth` is for users; ``benchmarks.growth`` uses the same parts on a test bed, also with real nodes.
"""
