"""Scripts in the manner of KSI's examples: namespaces, contexts, NodePorts on the host, the API by its token, /app."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from e2e.conftest import User

pytestmark = pytest.mark.bed

SCRIPT = """
set -e
kubectl create --context "$K8S_CLUSTER_NAME" namespace example
kubectl create --context "$K8S_CLUSTER_NAME" -n example -f - <<EOF
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: app, hostPath: {path: /app, type: Directory}}]
  containers:
    - name: web
      image: localhost/pinnace-test/busybox:1
      command: [httpd, -f, -h, /srv]
      volumeMounts: [{name: app, mountPath: /srv}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, nodePort: $K8S_PORT}]
EOF
kubectl wait --context "$K8S_CLUSTER_NAME" -n example --for condition=Ready --timeout=120s pod/web
host=${K8S_CLUSTER_API#https://}
for i in $(seq 50); do curl -sS "http://${host%:*}:$K8S_PORT/from-here" && break; sleep 0.2; done
curl -sS --insecure --header "Authorization: Bearer $K8S_CLUSTER_API_TOKEN" "$K8S_CLUSTER_API/api/v1/namespaces/example"
kubectl delete --context "$K8S_CLUSTER_NAME" namespace example --wait=false
exit 9
"""


def test_a_script_of_ksis_runs_unchanged(bob: User) -> None:
    bob.write("from-here", "a file of the working directory\n")
    bob.write("workload.sh", SCRIPT)
    result = bob.pinnace("run-workload", "--image", "busybox.tar", "workload.sh", code=9)
    assert "a file of the working directory" in result.stdout
    assert '"name": "example"' in result.stdout
    assert "eyJ" not in result.stdout + result.stderr, "a token was printed"
