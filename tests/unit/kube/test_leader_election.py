"""Who of several bridges is alive, as far as this host can tell."""

from __future__ import annotations

import os
import subprocess

from pinnace.kube.leader_election import is_dead, process_identity


def test_a_process_of_this_place_is_seen_to_be_dead() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        holder = process_identity(process.pid)
        assert not is_dead(holder)
        process.kill()
    assert is_dead(holder)
    assert not is_dead(process_identity(os.getpid()))


def test_one_of_the_same_number_is_another() -> None:
    assert is_dead(process_identity(os.getpid()) + "1")


def test_of_other_places_nothing_is_known() -> None:
    host, _, process = process_identity(os.getpid()).partition("/")
    assert not is_dead(f"not-{host}/{process}1")
    assert not is_dead("somebody-else")
    assert not is_dead("")
