"""Native sockets: TCP connections of pods that are connections of the hosts, with nothing of ours between them.

A pod's ``connect`` and ``accept`` are caught by the kernel (seccomp user notification). For a connection that leaves
the node, a server beside the agent makes a socket in the host's network namespace, and puts it in the place of the
pod's own. From then on the pod uses the host's network directly. Everything else takes the general path
(``network.router``), and so does every connection for which anything here fails: the kernel then simply goes on with
the call that it had caught.

    profile     the rules that a container's seccomp profile gets
    sockets/    the server that answers the calls: C, because a pod waits for every one of them
    server      starts it, and tells it what it cannot know: where other nodes are, and what is behind Services
    services    the endpoints of Services
    support     whether a host can have all this
"""
