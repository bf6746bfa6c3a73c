"""The objects that every cluster starts with."""

from __future__ import annotations

from pinnace.controlplane.objects import HAS_CGROUPS, no_resize


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
