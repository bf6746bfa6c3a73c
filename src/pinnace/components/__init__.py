"""Upstream's own binaries: pinned versions, and how they are fetched, built, stored and found.

``manifest`` describes them, ``store`` keeps them, and a *source* (``release``, ``build`` or ``bundle``) puts the
binaries of one component into a directory. ``fetch`` connects the three.
"""
