"""What agents on compute nodes read in the cluster's directory, and what they write there about themselves."""

from pinnace.spec.cluster import (
    API_PORT,
    CLOCK_SKEW,
    HEAD,
    LIFE,
    METRICS_DELAY,
    SANDBOX_IMAGE,
    ClusterSpec,
    Provisioning,
    Restriction,
    agent_argv,
)
from pinnace.spec.devices import Device, DeviceOffer
from pinnace.spec.files import appearance, read_json, write_json
from pinnace.spec.node import Allocation, Mpi, NodeSpec, PodReference
from pinnace.spec.records import NodeRecord, NodeServices, NodeState, ServiceRecord, ServiceState

__all__ = [
    "API_PORT",
    "CLOCK_SKEW",
    "HEAD",
    "LIFE",
    "METRICS_DELAY",
    "SANDBOX_IMAGE",
    "Allocation",
    "ClusterSpec",
    "Device",
    "DeviceOffer",
    "Mpi",
    "NodeRecord",
    "NodeServices",
    "NodeSpec",
    "NodeState",
    "PodReference",
    "Provisioning",
    "Restriction",
    "ServiceRecord",
    "ServiceState",
    "agent_argv",
    "appearance",
    "read_json",
    "write_json",
]
