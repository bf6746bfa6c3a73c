from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import json
import ssl
import stat
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.x509.oid import NameOID

from pinnace.controlplane import pki
from pinnace.network.addresses import choose

if TYPE_CHECKING:
    from pathlib import Path

RANGES = choose([])


def certificate(directory: Path, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((directory / f"{name}.crt").read_bytes())


def test_every_certificate_is_signed_by_the_clusters_own_authority(tmp_path: Path) -> None:
    pki.create_control_plane(tmp_path, RANGES, "cluster.local")
    pki.create_nodes(tmp_path, RANGES, [(0, "n1"), (1, "n2")])
    authority = certificate(tmp_path, "ca")
    for file in tmp_path.glob("*.crt"):
        certificate(tmp_path, file.stem).verify_directly_issued_by(authority)


def test_nobody_else_can_read_any_of_it(tmp_path: Path) -> None:
    pki.create_control_plane(tmp_path, RANGES, "cluster.local")
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_a_kubelet_is_its_node_and_nothing_else(tmp_path: Path) -> None:
    pki.Authority.create(tmp_path)
    pki.create_nodes(tmp_path, RANGES, [(1, "n2")])
    subject = certificate(tmp_path, "node-n2").subject
    assert [a.value for a in subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["system:node:n2"]
    assert [a.value for a in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == ["system:nodes"]
    names = certificate(tmp_path, "node-n2").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.IPAddress) == [RANGES.node(1)]


def test_the_api_answers_to_every_name_under_which_it_is_asked(tmp_path: Path) -> None:
    pki.create_control_plane(tmp_path, RANGES, "example.org")
    names = certificate(tmp_path, "apiserver").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "kubernetes.default.svc.example.org" in names.get_values_for_type(x509.DNSName)
    assert pki.SERVER_NAME in names.get_values_for_type(x509.DNSName)
    addresses = names.get_values_for_type(x509.IPAddress)
    assert {RANGES.node(0), RANGES.api, ipaddress.ip_address("127.0.0.1")} == set(addresses)


def test_a_clock_that_is_an_hour_behind_still_accepts_them(tmp_path: Path) -> None:
    pki.Authority.create(tmp_path)
    now = dt.datetime.now(dt.UTC)
    assert certificate(tmp_path, "ca").not_valid_before_utc < now - dt.timedelta(minutes=59)


def test_a_kubeconfig_names_its_server_and_has_its_own_key(tmp_path: Path) -> None:
    pki.create_control_plane(tmp_path, RANGES, "cluster.local")
    document = json.loads((tmp_path / "scheduler.kubeconfig").read_text())
    assert document["clusters"][0]["cluster"]["server"] == f"https://{RANGES.node(0)}:6443"
    assert document["users"][0]["user"]["client-key-data"]


def test_verification_as_strict_as_that_of_python_from_3_13_on_accepts_them(tmp_path: Path) -> None:
    pki.create_control_plane(tmp_path, RANGES, "cluster.local")
    client, server = ssl.create_default_context(cafile=tmp_path / "ca.crt"), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    client.load_cert_chain(tmp_path / "admin.crt", tmp_path / "admin.key")
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(tmp_path / "ca.crt")
    server.verify_flags |= ssl.VERIFY_X509_STRICT
    server.load_cert_chain(tmp_path / "apiserver.crt", tmp_path / "apiserver.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=pki.SERVER_NAME),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for end in ends * 3:
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    ends[0].write(b"asked")
    assert ends[1].read() == b"asked"
