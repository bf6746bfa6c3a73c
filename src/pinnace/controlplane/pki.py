"""Keys, certificates and kubeconfigs of a cluster, in its directory, readable by its user alone.

Everything is elliptic-curve and made in a few milliseconds. The control plane's part is made before the job is
submitted; the nodes' part once Slurm has chosen them, because a kubelet's certificate carries its node's name.
"""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
import os
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pinnace.controlplane import metrics
from pinnace.spec import API_PORT, CLOCK_SKEW, LIFE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pinnace.network.addresses import Ranges

LOOPBACK = ("127.0.0.1",)
SERVER_NAME = "kubernetes"  # that clients inside verify in the API's certificate, whatever address they dial
OUTSIDE_NAME = "api.name"  # the file with the TLS server name that clients on the hosts' network send


# With the key identifiers, what RFC 5280 demands of an authority, and Python from 3.13 on as well.
CA_USAGE = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True, kw_only=True)
class CertificateSubject:
    """The subject and alternative names of a certificate. ``file`` is the stem of its files."""

    file: str
    common_name: str
    groups: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = field(default=())


class Authority:
    """The cluster's certificate authority, and the directory of its files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key: ec.EllipticCurvePrivateKey
        self._certificate: x509.Certificate

    @staticmethod
    def create(directory: Path) -> Authority:
        authority = Authority(directory)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pinnace")])
        certificate = (
            _builder(subject, subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(CA_USAGE, critical=True)
            .sign(key, hashes.SHA256())
        )
        authority._key, authority._certificate = key, certificate
        authority._save("ca", key, certificate)
        return authority

    @staticmethod
    def load(directory: Path) -> Authority:
        authority = Authority(directory)
        key = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError("ca.key is not ours")
        authority._key = key
        authority._certificate = x509.load_pem_x509_certificate((directory / "ca.crt").read_bytes())
        return authority

    def issue(self, subject: CertificateSubject) -> None:
        """Make a key and a certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in subject.groups]
        name = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, subject.common_name)])
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            _builder(name, self._certificate.subject, key.public_key())
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(issuer, critical=False)
        )
        alternatives: list[x509.GeneralName] = [x509.DNSName(alternative) for alternative in subject.names]
        alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in subject.addresses]
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        self._save(subject.file, key, builder.sign(self._key, hashes.SHA256()))

    def issue_kubeconfig(self, subject: CertificateSubject, server: str, server_name: str = SERVER_NAME) -> None:
        """Make a key, a certificate and a kubeconfig. Without a ``server_name`` clients verify the server's address."""
        self.issue(subject)

        def read(name: str) -> str:
            return base64.b64encode((self._directory / name).read_bytes()).decode()

        document = kubeconfig(
            name=subject.file,
            server=server,
            ca=read("ca.crt"),
            certificate=read(f"{subject.file}.crt"),
            key=read(f"{subject.file}.key"),
            server_name=server_name,
        )
        write_secret(self._directory / f"{subject.file}.kubeconfig", json.dumps(document).encode())

    def service_account_key(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        write_secret(self._directory / "sa.key", _pem(key))
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        write_secret(self._directory / "sa.pub", public)

    def _save(self, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        write_secret(self._directory / f"{name}.key", _pem(key))
        write_secret(self._directory / f"{name}.crt", certificate.public_bytes(serialization.Encoding.PEM))


def kubeconfig(
    *, name: str, server: str, ca: str, certificate: str, key: str, server_name: str = SERVER_NAME
) -> dict[str, object]:
    """A kubeconfig with one context of this name. Certificates and key are base64."""
    cluster = {"server": server, "certificate-authority-data": ca, "tls-server-name": server_name}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": {"client-certificate-data": certificate, "client-key-data": key}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


def create_control_plane(directory: Path, ranges: Ranges, domain: str) -> None:
    """Make all keys, certificates and kubeconfigs but those of the nodes."""
    authority = Authority.create(directory)
    authority.service_account_key()
    server = f"https://{ranges.node(0)}:{API_PORT}"
    authority.issue(
        CertificateSubject(
            file="apiserver",
            common_name="kube-apiserver",
            names=("kubernetes", "kubernetes.default", "kubernetes.default.svc", f"kubernetes.default.svc.{domain}",
                   "localhost"),
            addresses=(str(ranges.node(0)), str(ranges.api), *LOOPBACK),
        )
    )  # fmt: skip
    # A certificate with a secret server name, which the API server shows only to clients that send the name. The proxy
    # on the host recognises them by it and serves them first; their own certificates decide what they may do.
    outside = f"{secrets.token_hex(16)}.pinnace.internal"
    authority.issue(CertificateSubject(file="apiserver-outside", common_name="kube-apiserver", names=(outside,)))
    write_secret(directory / OUTSIDE_NAME, outside.encode())
    authority.issue(CertificateSubject(file="front-proxy", common_name="front-proxy-client"))
    authority.issue(CertificateSubject(file="kubelet-client", common_name="kube-apiserver-kubelet-client",
                             groups=("system:masters",)))  # fmt: skip
    for subject in (
        CertificateSubject(file="admin", common_name="pinnace-admin", groups=("system:masters",)),
        CertificateSubject(file="controller-manager", common_name="system:kube-controller-manager", addresses=LOOPBACK),
        CertificateSubject(file="scheduler", common_name="system:kube-scheduler", addresses=LOOPBACK),
        CertificateSubject(file="kube-proxy", common_name="system:kube-proxy"),
        CertificateSubject(file="coredns", common_name="pinnace:coredns"),
        CertificateSubject(file="storage", common_name="pinnace:storage"),
        CertificateSubject(file="provisioner", common_name="pinnace:provisioner"),
    ):
        authority.issue_kubeconfig(subject, server)
    # metrics-server uses its kubeconfig for nodes too, which have other names than the API.
    authority.issue_kubeconfig(
        CertificateSubject(
            file=metrics.NAME,
            common_name=metrics.USER,
            names=(f"{metrics.NAME}.kube-system.svc",),
            addresses=(str(ranges.node(0)),),
        ),
        server,
        server_name="",
    )


def create_nodes(directory: Path, ranges: Ranges, nodes: Iterable[tuple[int, str]]) -> None:
    """Make the certificates and kubeconfigs of kubelets, for nodes with these indices and names."""
    authority = Authority.load(directory)
    server = f"https://{ranges.node(0)}:{API_PORT}"
    for index, name in nodes:
        subject = CertificateSubject(
            file=f"node-{name}",
            common_name=f"system:node:{name}",
            groups=("system:nodes",),
            names=(name,),
            addresses=(str(ranges.node(index)),),
        )
        authority.issue_kubeconfig(subject, server)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(seconds=CLOCK_SKEW))
        .not_valid_after(now + dt.timedelta(seconds=LIFE))
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def write_secret(path: Path, content: bytes) -> None:
    """Write a file atomically, readable by its owner alone from the beginning."""
    unfinished = path.with_name(f".{path.name}.new")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    unfinished.rename(path)
