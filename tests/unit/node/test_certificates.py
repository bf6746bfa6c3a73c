"""Certificates that are made beside the agent."""

from __future__ import annotations

import os
from ipaddress import IPv4Network
from typing import TYPE_CHECKING

from cryptography import x509

from pinnace.controlplane.pki import Authority
from pinnace.network.addresses import Ranges
from pinnace.node.certificates import Certificates, will_be_wanted

if TYPE_CHECKING:
    from pathlib import Path

RANGES = Ranges.within(IPv4Network("10.0.0.0/8"))


def test_a_node_has_one_for_its_name_and_address(tmp_path: Path) -> None:
    Authority.create(tmp_path)
    certificates = Certificates()
    certificates.make(tmp_path, RANGES, "job-7", first=3)
    assert os.waitpid(certificates.pid, 0)[1] == 0
    made = x509.load_pem_x509_certificate((tmp_path / "node-job-7.crt").read_bytes())
    assert "system:node:job-7" in made.subject.rfc4514_string()
    about = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert about.get_values_for_type(x509.IPAddress) == [RANGES.node(3)]
    assert (tmp_path / "node-job-7.kubeconfig").exists()


def test_an_error_is_told_by_how_the_process_ends(tmp_path: Path) -> None:
    certificates = Certificates()
    certificates.make(tmp_path / "nowhere", RANGES, "job-7", first=3)
    assert os.waitpid(certificates.pid, 0)[1] != 0


def test_nothing_is_made_that_nobody_asked_for(tmp_path: Path) -> None:
    certificates = Certificates()
    certificates.cancel()
    assert os.waitpid(certificates.pid, 0)[1] == 0
    assert not list(tmp_path.iterdir())


def test_who_will_want_some() -> None:
    assert will_be_wanted(["--join"], {"SLURM_PROCID": "3"})
    assert will_be_wanted([], {"SLURM_PROCID": "0"})
    assert not will_be_wanted([], {"SLURM_PROCID": "1"})
    assert not will_be_wanted(["--stop"], {})
