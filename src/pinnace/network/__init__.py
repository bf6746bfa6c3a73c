"""The fabric: one network over all nodes of a cluster, made of TUN devices and links between them.

Everything in here runs on compute nodes and imports the standard library alone.
"""
