"""The objects that every cluster starts with."""

from __future__ import annotations

from pinnace.controlplane.objects import HAS_CGROUPS, api_objects, no_resize
from pinnace.network.addresses import choose


def test_a_resize_is_refused_on_nodes_without_cgroups() -> None:
    """The parameters are the nodes that lack the label: a node that nobody has labelled is one without."""
    (_, policy), (_, binding) = no_resize()
    assert policy["spec"]["paramKind"] == {"apiVersion": "v1", "kind": "Node"}
    assert policy["spec"]["failurePolicy"] == "Fail"
    [validation] = policy["spec"]["validations"]
    assert validation["expression"].endswith("object.spec.nodeName != params.metadata.name")
    parameters = binding["spec"]["paramRef"]
    assert parameters["selector"] == {"matchExpressions": [{"key": HAS_CGROUPS, "operator": "DoesNotExist"}]}
    assert parameters["parameterNotFoundAction"] == "Allow"
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]


def test_the_service_of_the_api_is_what_the_api_server_would_make_of_it() -> None:
    """It compares its own with what is there, and changes what differs."""
    ranges = choose([])
    (_, service), (_, slice_) = api_objects(ranges)
    assert service["spec"]["clusterIP"] == str(ranges.api)
    assert service["spec"]["ports"] == [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": 6443}]
    assert slice_["metadata"] == {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}}
    assert slice_["endpoints"] == [{"addresses": [str(ranges.node(0))], "conditions": {"ready": True}}]
    assert slice_["ports"] == [{"name": "https", "protocol": "TCP", "port": 6443}]
