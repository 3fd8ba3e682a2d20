"""Which cluster a command talks to, and how: the flags that all client commands share."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from broker.cli.client_log import silence_client
from broker.cli.errors import UsageError

__all__ = ["Connection"]

_GROUP = Group("Connection", sort_key=10)


def _flag(name: str, text: str, *aliases: str) -> Parameter:
    """A flag with the names that the other commands of `kmr` have for it."""
    path = name.removeprefix("security_")
    variable = f"KMR_SECURITY__{path.upper()}" if path != name else f"KMR_{name.upper()}"
    flag = f"--{name.replace('_', '-')}"
    return Parameter(name=(flag, *aliases), env_var=variable, help=text, group=_GROUP)


@Parameter(name="*")
@dataclass(frozen=True)
class Connection:
    """How to reach a cluster."""

    bootstrap_servers: Annotated[
        str, _flag("bootstrap_servers", "HOST:PORT of brokers, separated by commas.", "-b")
    ] = "127.0.0.1:9092"
    security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
        _flag("security_protocol", "Encryption (SSL) and authentication (SASL)."),
    ] = "PLAINTEXT"
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
        _flag("security_sasl_mechanism", "How the user is authenticated."),
    ] = "PLAIN"
    sasl_user: Annotated[str | None, _flag("security_sasl_user", "User name for SASL.")] = None
    sasl_password: Annotated[
        str | None,
        _flag(
            "security_sasl_password", "Password for SASL; other users see flags, use a variable."
        ),
    ] = None
    ssl_cafile: Annotated[
        str | None, _flag("security_ssl_cafile", "Certificates to trust; default: the system's.")
    ] = None
    ssl_certfile: Annotated[
        str | None, _flag("security_ssl_certfile", "Our own certificate, for mutual TLS.")
    ] = None
    ssl_keyfile: Annotated[
        str | None, _flag("security_ssl_keyfile", "The key of our own certificate.")
    ] = None
    ssl_check_hostname: Annotated[
        bool,
        _flag("security_ssl_check_hostname", "Whether the certificate must name the broker."),
    ] = True

    def client_settings(self) -> dict[str, Any]:
        """Arguments for any client of aiokafka. Raises UsageError."""
        silence_client()
        settings: dict[str, Any] = {"bootstrap_servers": self.bootstrap_servers, "client_id": "kmr"}
        if self.security_protocol != "PLAINTEXT":
            settings["security_protocol"] = self.security_protocol
        if self.security_protocol.endswith("SSL"):
            settings["ssl_context"] = self._ssl_context()
        if self.security_protocol.startswith("SASL"):
            if self.sasl_user is None or self.sasl_password is None:
                raise UsageError(
                    f"--security-protocol {self.security_protocol} needs --security-sasl-user and"
                    " --security-sasl-password"
                )
            settings |= {
                "sasl_mechanism": self.sasl_mechanism,
                "sasl_plain_username": self.sasl_user,
                "sasl_plain_password": self.sasl_password,
            }
        return settings

    def _ssl_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ssl_cafile)
        except OSError as error:
            raise UsageError(f"--security-ssl-cafile {self.ssl_cafile}: {error}") from error
        context.check_hostname = self.ssl_check_hostname
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise UsageError("--security-ssl-certfile and --security-ssl-keyfile go together")
        if self.ssl_certfile is not None:
            try:
                context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile)
            except OSError as error:
                raise UsageError(
                    f"--security-ssl-certfile {self.ssl_certfile}, --security-ssl-keyfile"
                    f" {self.ssl_keyfile}: {error}"
                ) from error
        return context
