"""The kubelets' certificates, made by a process that starts before the agent knows for which nodes.

What it has to load takes as long as all that the agent has to; so the two load side by side.
"""

from __future__ import annotations

import os
import pickle
import subprocess
from typing import TYPE_CHECKING

from pinnace.node.forking import fork

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pinnace.network.addresses import Ranges


def will_be_wanted(argv: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether an agent that is called like this is likely to need them: a node that joins, and the head for all."""
    return "--join" in argv or ("--stop" not in argv and environment.get("SLURM_PROCID", "0") == "0")


class Certificates:
    """Those who make them, and wait to be told for whom."""

    def __init__(self) -> None:
        self._order, self._tell = os.pipe2(os.O_CLOEXEC)
        self.pid = fork(self._make)
        os.close(self._order)

    def make(self, secrets: Path, ranges: Ranges, names: str, *, first: int) -> None:
        """Begin, for nodes that Slurm may name in short (n[1-4]). If it fails, the process ends with an error."""
        os.write(self._tell, pickle.dumps((secrets, ranges, names, first)))
        self.cancel()

    def cancel(self) -> None:
        """There is nothing more to do."""
        os.close(self._tell)

    def _make(self) -> None:
        os.close(self._tell)
        from pinnace.controlplane import pki  # noqa: PLC0415 - `cryptography` is what takes so long

        with os.fdopen(self._order, "rb") as order:
            told = order.read()
        if told:
            secrets, ranges, names, first = pickle.loads(told)  # noqa: S301 - our parent's own words
            pki.create_nodes(secrets, ranges, enumerate(_each(names), first))


def _each(names: str) -> list[str]:
    if not any(sign in names for sign in "[,"):
        return [names]
    argv = ["scontrol", "show", "hostnames", names]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.split()
