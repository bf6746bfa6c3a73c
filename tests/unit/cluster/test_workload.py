from __future__ import annotations

import json

from pinnace.cluster.workload import AppliedObject, parse_applied


def test_one_object_and_a_list_of_them() -> None:
    one = {"kind": "Job", "metadata": {"name": "a", "namespace": "default"}}
    namespace = {"kind": "Namespace", "metadata": {"name": "n"}}
    assert parse_applied(json.dumps(one)) == [AppliedObject(kind="Job", namespace="default", name="a")]
    both = parse_applied(json.dumps({"kind": "List", "items": [one, namespace]}))
    assert [applied.kind for applied in both] == ["Job", "Namespace"]
    assert both[1].namespace == ""
