"""What makes an allocation a Kubernetes node: namespaces, mounts, containerd, kubelet, kube-proxy.

Everything in here runs on compute nodes and imports the standard library alone.
"""
