"""TLS of the listener, and who a client's certificate says it is."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, Final

from broker.errors import BrokerError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["certificate_principal", "server_context"]

_SHORT_NAMES: Final = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "countryName": "C",
    "domainComponent": "DC",
    "userId": "UID",
}
_ESCAPED = ',+"\\<>;'


def server_context(
    certificate: Path, key: Path, client_authorities: Path | None = None
) -> ssl.SSLContext:
    """TLS 1.2 and newer with this certificate chain (PEM) and its private key (PEM, no passphrase).

    With `client_authorities` (PEM) clients must have a certificate of one of them (mutual TLS). Raises
    BrokerError that names the file.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        # An empty passphrase: OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise BrokerError(
            f"the certificate {certificate} with the key {key} cannot be used: {_reason(error)};"
            " both must be PEM, belong together, and the key must have no passphrase"
        ) from error
    if client_authorities is not None:
        try:
            context.load_verify_locations(client_authorities)
        except OSError as error:
            raise BrokerError(
                f"the authorities of clients in {client_authorities} cannot be used:"
                f" {_reason(error)}; it must have certificates as PEM"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def certificate_principal(certificate: dict[str, Any]) -> str:
    """`User:` and the subject as RFC 2253 writes it, as in Kafka: `User:CN=alice,O=Example`."""
    parts = [
        "+".join(f"{_SHORT_NAMES.get(name, name)}={_escaped(value)}" for name, value in part)
        for part in reversed(certificate.get("subject", ()))
    ]
    return f"User:{','.join(parts)}"


def _escaped(value: str) -> str:
    text = "".join(f"\\{each}" if each in _ESCAPED else each for each in value)
    if text.startswith(("#", " ")):
        text = "\\" + text
    if text.endswith(" "):
        text = text[:-1] + "\\ "
    return text


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    return getattr(error, "strerror", None) or str(error)
