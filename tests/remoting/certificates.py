"""Keys and certificates for tests, made by them."""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.name import Name


class Authority:
    """Signs certificates for whoever asks, and writes them as PEM files below `folder`."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self.key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._certificate(self.name, self.key.public_key(), is_authority=True)
        self.path = str(folder / f"{name}.pem")
        (folder / f"{name}.pem").write_bytes(certificate)

    def issue(
        self,
        name: str,
        password: str | None = None,
        *,
        hosts: tuple[Any, ...] = (),
        addresses: Sequence[str] = (),
        expired: bool = False,
    ) -> tuple[str, str]:
        """Paths of a certificate for `name` and of its key. `hosts` and `addresses` are where a server is reached."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        cert_path, key_path = self.folder / f"{name}-cert.pem", self.folder / f"{name}-key.pem"
        others = [*map(x509.DNSName, hosts), *(x509.IPAddress(ipaddress.ip_address(each)) for each in addresses)]
        cert_path.write_bytes(self._certificate(subject, key.public_key(), others, expired=expired))
        locked = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        key_path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
        return str(cert_path), str(key_path)

    def _certificate(
        self,
        subject: Name,
        public_key: ec.EllipticCurvePublicKey,
        others: Sequence[x509.GeneralName] = (),
        *,
        is_authority: bool = False,
        expired: bool = False,
    ) -> bytes:
        now = datetime.now(UTC) - timedelta(days=100 if expired else 0)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if others:
            builder = builder.add_extension(x509.SubjectAlternativeName(others), critical=False)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
