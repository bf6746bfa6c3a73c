"""Upstream's own binaries: which ones, pinned; how they are fetched, built, kept and found.

``manifest`` says what they are, ``store`` keeps them, and a *source* (``release``, ``build`` or ``bundle``) puts the
binaries of one component into a directory. ``fetch`` brings the three together.
"""
