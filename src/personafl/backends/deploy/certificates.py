"""An own certificate authority, and what it signs: the certificates of the server and of the sites.

Sites trust this authority and no other, so a certificate that anybody else issued for the same host is refused; and so
does the server's proxy, by which it knows sites before it reads what they send. A site makes its key itself and asks
for a certificate by a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from personafl.errors import ConfigError

AUTHORITY_DAYS, SERVER_DAYS, SITE_DAYS = 3650, 825, 825
# A machine whose clock is behind must not take a new certificate for one of the future.
_SKEW = timedelta(days=1)


def make_authority(name: str) -> tuple[bytes, bytes]:
    """The private key and the self-signed certificate of a new authority, both PEM.

    Examples
    --------
    >>> key, certificate = make_authority("a federation")
    >>> x509.load_pem_x509_certificate(certificate).subject.rfc4514_string()
    'CN=a federation'
    """
    key = ec.generate_private_key(ec.SECP384R1())
    subject = _named(name)
    usage = _usage(key_cert_sign=True, crl_sign=True)
    builder = (
        _builder(subject, subject, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return _private(key), builder.sign(key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def issue_server(authority_key: bytes, authority: bytes, hosts: Sequence[str]) -> tuple[bytes, bytes]:
    """A private key and a certificate for a server, both PEM.

    Parameters
    ----------
    authority_key, authority
        What `make_authority` made.
    hosts : sequence of str
        Names and IP addresses by which the server is reached; the certificate holds for no other.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    names = x509.SubjectAlternativeName([_host(host) for host in dict.fromkeys(hosts)])
    certificate = _issue(
        authority_key, authority, hosts[0], key.public_key(), SERVER_DAYS, ExtendedKeyUsageOID.SERVER_AUTH, [names]
    )
    return _private(key), certificate


def issue_site(authority_key: bytes, authority: bytes, name: str, key: ec.EllipticCurvePublicKey) -> bytes:
    """A certificate (PEM) for the key of a site, by which the proxy knows it."""
    return _issue(authority_key, authority, name, key, SITE_DAYS, ExtendedKeyUsageOID.CLIENT_AUTH)


def make_request(name: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    """A request (PEM) for the certificate of a site, which proves that it has the key and tells nothing of it.

    Examples
    --------
    >>> name, key = read_request(make_request("north", ec.generate_private_key(ec.SECP384R1())))
    >>> name, key.curve.name
    ('north', 'secp384r1')
    """
    request = x509.CertificateSigningRequestBuilder().subject_name(_named(name)).sign(key, hashes.SHA384())
    pem: bytes = request.public_bytes(serialization.Encoding.PEM)
    return pem


def read_request(data: bytes) -> tuple[str, ec.EllipticCurvePublicKey]:
    """The name and the public key of a request; a ConfigError where it is none."""
    try:
        request = x509.load_pem_x509_csr(data)
        key = request.public_key()
        names = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        if not request.is_signature_valid or not isinstance(key, ec.EllipticCurvePublicKey) or len(names) != 1:
            raise ValueError("it is not signed with the elliptic-curve key that it names")
        return str(names[0].value), key
    except (ValueError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise ConfigError(f"this is no request of a site, made by personafl site request: {error}") from None


def _issue(
    authority_key: bytes,
    authority: bytes,
    name: str,
    key: ec.EllipticCurvePublicKey,
    days: int,
    purpose: x509.ObjectIdentifier,
    more: Sequence[x509.ExtensionType] = (),
) -> bytes:
    """A certificate that holds for one purpose."""
    signer = serialization.load_pem_private_key(authority_key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(authority)
    known_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = (
        _builder(_named(name), issuer.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(known_by, critical=False)
    )
    for extension in more:
        builder = builder.add_extension(extension, critical=False)
    pem: bytes = builder.sign(signer, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)
    return pem


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC).replace(microsecond=0)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])  # longer ones are not allowed


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(**granted: bool) -> x509.KeyUsage:
    every = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
             "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")  # fmt: skip
    return x509.KeyUsage(**{what: granted.get(what, False) for what in every})


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    pem: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem
