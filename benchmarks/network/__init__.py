"""The network of pods, measured against that of the bare machine in the same run.

    .venv/bin/python -m benchmarks.network [--rounds N] [--seconds N] [--markdown] [--json FILE] [--plot FILE]

A bed of three hosts: a cluster on n1 and n2, and n3, which is not in it. Every measurement is taken between bare hosts
and between pods on them, in turn. Pods use two paths: *native*, where TCP is handed over to sockets of the host, and
*general*, through the TUN device between nodes and through the proxy to the outside. Beside each figure is the CPU time
of the whole machine, whoever used it.
"""
