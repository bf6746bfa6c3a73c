"""An HTTPS server in a pod, with a certificate that the API server trusts: for webhooks and aggregated APIs."""

from __future__ import annotations

import base64
import datetime as dt
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from e2e.namespaces import Object, config_map, pod, service

SERVE = """
import http.server, json, ssl, sys
sys.path.insert(0, "/files")
import answers
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        code, document = answers.answer(self.path, body, self.headers)
        data = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    do_GET = do_POST = answer
server = http.server.ThreadingHTTPServer(("0.0.0.0", 8443), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/files/server.crt", "/files/server.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Signed by itself: it is its own authority."""

    certificate: str
    key: str

    @property
    def bundle(self) -> str:
        return base64.b64encode(self.certificate.encode()).decode()

    @staticmethod
    def create(name: str) -> Certificate:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        now = dt.datetime.now(dt.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Certificate(
            certificate=made.public_bytes(serialization.Encoding.PEM).decode(), key=private.decode()
        )  # fmt: skip


def server(name: str, namespace: str, answers: str, *, node: str) -> tuple[list[Object], str]:
    """A pod, its Service and its files; and the bundle by which it is known. ``answers`` defines ``answer``."""
    made = Certificate.create(f"{name}.{namespace}.svc")
    files = {"server.crt": made.certificate, "server.key": made.key, "answers.py": answers}
    container = {
        "volumeMounts": [{"name": "files", "mountPath": "/files"}],
        "readinessProbe": {"tcpSocket": {"port": 8443}, "periodSeconds": 1},
    }
    volumes = [{"name": "files", "configMap": {"name": name}}]
    return [
        config_map(name, **files),
        service(name, {"app": name}, {"port": 443, "targetPort": 8443}),
        pod(name, "python3", "-c", SERVE, of="python", container=container, volumes=volumes, nodeName=node),
    ], made.bundle
