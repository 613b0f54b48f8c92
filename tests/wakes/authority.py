"""A certificate authority that lives as long as the tests."""

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID


class Authority:
    """Issues certificates below a root of its own."""

    def __init__(self, room: Path) -> None:
        self._room = room
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Tests' root")])
        root = self._builder(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.file = room / "root.pem"
        self.file.write_bytes(_pem(root.sign(self._key, SHA256())))

    def server_context(self, *names: str) -> ssl.SSLContext:
        """What a server for these names or addresses speaks TLS with."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        certificate = (
            self._builder(subject, key)
            .add_extension(
                x509.SubjectAlternativeName([_general(n) for n in names]), critical=False
            )
            .sign(self._key, SHA256())
        )
        file = self._room / f"{certificate.serial_number}.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        file.write_bytes(private + _pem(certificate))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        today = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(today - timedelta(days=1))
            .not_valid_after(today + timedelta(days=1))
        )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
