"""Keys and certificates for tests, made by them."""

import ipaddress
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Authority:
    """Signs certificates for whoever asks, and writes them as PEM files below `folder`."""

    def __init__(self, folder, name="authority"):
        self.folder = folder
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self.key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._certificate(self.name, self.key.public_key(), is_authority=True)
        self.path = str(folder / f"{name}.pem")
        (folder / f"{name}.pem").write_bytes(certificate)

    def issue(self, name, password=None, *, hosts=(), addresses=(), expired=False):
        """Paths of a certificate for `name` and of its key. `hosts` and `addresses` are where a server is reached."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        cert_path, key_path = self.folder / f"{name}-cert.pem", self.folder / f"{name}-key.pem"
        others = [*map(x509.DNSName, hosts), *(x509.IPAddress(ipaddress.ip_address(each)) for each in addresses)]
        cert_path.write_bytes(self._certificate(subject, key.public_key(), others, expired=expired))
        locked = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        key_path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
        return str(cert_path), str(key_path)

    def _certificate(self, subject, public_key, others=(), *, is_authority=False, expired=False):
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
