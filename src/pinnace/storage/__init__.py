"""PersistentVolumes: directories on the shared file system and on the scratch of nodes.

Runs on compute nodes, so it imports the standard library alone.
"""
