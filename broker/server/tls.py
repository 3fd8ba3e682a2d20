"""The TLS settings of the listener, and the principal in a client's certificate."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, Final

from ..errors import BrokerError

if TYPE_CHECKING:
    from pathlib import Path


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
    """Return a context for TLS 1.2 and newer.

    Args:
        certificate: the certificate chain (PEM).
        key: its private key (PEM) without a passphrase.
        client_authorities: if given, clients need a certificate of one of these (PEM; mutual TLS).

    Raises BrokerError that names the file.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        # With no passphrase at all, OpenSSL would prompt for one on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise BrokerError(
            f"cannot use certificate {certificate} with key {key}: {_reason(error)}; both must be PEM"
            " and belong together, and the key must have no passphrase"
        ) from error
    if client_authorities is not None:
        try:
            context.load_verify_locations(client_authorities)
        except OSError as error:
            raise BrokerError(
                f"cannot use client authorities {client_authorities}: {_reason(error)}; the file"
                " must contain certificates (PEM)"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def certificate_principal(certificate: dict[str, Any]) -> str:
    """Return `User:` and the subject in RFC 2253 form, as Kafka does: `User:CN=alice,O=Example`."""
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
