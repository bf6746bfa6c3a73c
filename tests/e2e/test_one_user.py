"""Clusters of a user who has no subordinate ids."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e.left import assert_nothing_left
from testbed.plan import GROUPS

if TYPE_CHECKING:
    from e2e.conftest import User

pytestmark = pytest.mark.bed

EXAMPLES = Path(__file__).parents[2] / "examples"
# An image whose files have several owners, and pods that want to be somebody.
SOMEBODY = """
apiVersion: batch/v1
kind: Job
metadata: {name: somebody}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      securityContext: {runAsUser: 33, runAsGroup: 33, runAsNonRoot: true, fsGroup: 44, supplementalGroups: [55]}
      containers:
        - name: main
          image: localhost/pinnace-test/nettools:1
          tty: true
          command:
            - sh
            - -ec
            - |
              touch /data/file /mine
              chown 33:33 /data/file
              umask 007
              touch /project/by-carol
              test -s /var/run/secrets/kubernetes.io/serviceaccount/token
              curl -sS -k -o /dev/null https://kubernetes.default.svc.cluster.local/version
              echo "I am $(id -u), and all is well"
          volumeMounts: [{name: data, mountPath: /data}, {name: project, mountPath: /project}]
      volumes: [{name: data, emptyDir: {}}, {name: project, hostPath: {path: /home/groups/project}}]
"""


def test_the_example_on_two_nodes_and_a_container_that_wants_to_be_somebody(carol: User) -> None:
    """Such a container runs as the user, and has the user's groups, whatever it asks for."""
    both = carol.write("both.yaml", (EXAMPLES / "hello.yaml").read_text() + "---" + SOMEBODY)
    result = carol.pinnace("run", "-N", "2", "--image", "busybox.tar", "--image", "nettools.tar", both)
    assert result.stdout.count("hello from") == 2
    assert "I am 0, and all is well" in result.stdout
    made = (carol.home.parent / "groups/project/by-carol").stat()
    assert (made.st_uid, made.st_gid) == (carol.uid, GROUPS[0].gid)
    assert_nothing_left(carol)
