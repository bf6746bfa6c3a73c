"""Upstream's conformance suite, run against a cluster of pinnace on the test bed: ``make conformance``.

    suite      the tests themselves, built from the module of the pinned Kubernetes
    locking    for maintainers: the locks of the suite and its images, after a change of version
    running    the bed, the cluster, and a pod in it that runs the tests
    report     what came out
    expected   which tests cannot pass, and why

It is a tool for those who work on pinnace; nothing of it is installed, and nothing imports it.
"""
