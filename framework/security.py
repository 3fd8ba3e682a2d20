"""The options of a Kafka connection, for every aiokafka client that the worker opens."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from framework.errors import SettingsError

if TYPE_CHECKING:
    from framework.settings import SecuritySettings, Settings

__all__ = ["client_options"]


def client_options(settings: Settings) -> dict[str, object]:
    """Keyword arguments for aiokafka's consumer, producer and admin client, brokers left out.

    Raises:
        SettingsError: a certificate or a key cannot be read.
    """
    security = settings.security
    options: dict[str, object] = {
        "client_id": settings.client_id,
        "security_protocol": security.protocol,
    }
    if security.protocol.endswith("SSL"):
        options["ssl_context"] = _ssl_context(security)
    if security.protocol.startswith("SASL"):
        options |= {
            "sasl_mechanism": security.sasl_mechanism,
            "sasl_plain_username": security.sasl_user,
            "sasl_plain_password": security.sasl_password,
        }
    return options


def _ssl_context(security: SecuritySettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=security.ssl_cafile)
    except OSError as error:
        raise SettingsError(
            f"security.ssl_cafile: no certificates in {security.ssl_cafile}: {_cause(error)}"
        ) from error
    context.check_hostname = security.ssl_check_hostname
    if security.ssl_certfile is not None:
        try:
            context.load_cert_chain(security.ssl_certfile, security.ssl_keyfile)
        except OSError as error:
            raise SettingsError(
                f"security.ssl_certfile, security.ssl_keyfile: {security.ssl_certfile} and "
                f"{security.ssl_keyfile} are no certificate with its key: {_cause(error)}"
            ) from error
    return context


def _cause(error: OSError) -> str:
    return error.strerror or str(error)
