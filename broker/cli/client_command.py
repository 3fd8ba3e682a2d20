"""What the commands for any Kafka cluster share: connection flags, and errors of the client in one line."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import re
import ssl
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, ParamSpec

from aiokafka import errors as kafka
from aiokafka.client import collect_hosts
from aiokafka.conn import create_conn
from cyclopts import Group, Parameter

from kmr.config.secrets import read_secret
from kmr.errors import SettingsError

from .terminal import CommandError, UsageError, complain, runs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

Arguments = ParamSpec("Arguments")

_GROUP: Final = Group("Connection", sort_key=10)
_LOG_PAUSE: Final = 30.0  # seconds
_REFUSAL_TIMEOUT: Final = 5.0  # seconds
_ADDRESS: Final = re.compile(r"\('([^']+)', (\d+)")  # in messages of aiokafka


# -- flags ---------------------------------------------------------------------------------------


def _flag(name: str, text: str, *aliases: str) -> Parameter:
    """Return a flag with the name and environment variable that the other `kmr` commands use."""
    path = name.removeprefix("security_")
    variable = f"KMR_SECURITY__{path.upper()}" if path != name else f"KMR_{name.upper()}"
    flag = f"--{name.replace('_', '-')}"
    return Parameter(name=(flag, *aliases), env_var=variable, help=text, group=_GROUP)


@Parameter(name="*")
@dataclass(frozen=True)
class ClientFlags:
    """The address of a cluster, and its encryption and authentication."""

    bootstrap_servers: Annotated[
        str, _flag("bootstrap_servers", "HOST:PORT of brokers, separated by commas.", "-b")
    ] = "127.0.0.1:9092"
    security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
        _flag("security_protocol", "Encryption (SSL) and authentication (SASL)."),
    ] = "PLAINTEXT"
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
        _flag("security_sasl_mechanism", "SASL mechanism."),
    ] = "PLAIN"
    sasl_user: Annotated[str | None, _flag("security_sasl_user", "User name for SASL.")] = None
    sasl_password: Annotated[
        str | None,
        _flag(
            "security_sasl_password",
            "Password for SASL. Other users can see flags: prefer the environment variable.",
        ),
    ] = None
    ssl_cafile: Annotated[
        str | None,
        _flag("security_ssl_cafile", "Trusted certificates (PEM); default: the system's."),
    ] = None
    ssl_certfile: Annotated[
        str | None, _flag("security_ssl_certfile", "Client certificate (PEM), for mutual TLS.")
    ] = None
    ssl_keyfile: Annotated[
        str | None, _flag("security_ssl_keyfile", "Private key (PEM) of the client certificate.")
    ] = None
    ssl_check_hostname: Annotated[
        bool, _flag("security_ssl_check_hostname", "Check that the certificate names the broker.")
    ] = True

    def ssl_context(self) -> ssl.SSLContext:
        """Return the TLS settings. Raises UsageError for files that cannot be used."""
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


def client_settings(flags: ClientFlags | None) -> dict[str, Any]:
    """Return the arguments for any client of aiokafka; None means all defaults. Raises UsageError.

    Silences the client's log: the command reports errors in one line.
    """
    flags = flags or ClientFlags()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    settings: dict[str, Any] = {"bootstrap_servers": flags.bootstrap_servers, "client_id": "kmr"}
    if flags.security_protocol != "PLAINTEXT":
        settings["security_protocol"] = flags.security_protocol
    if flags.security_protocol.endswith("SSL"):
        settings["ssl_context"] = flags.ssl_context()
    if flags.security_protocol.startswith("SASL"):
        try:
            password = flags.sasl_password or read_secret(os.environ, "KMR_SECURITY__SASL_PASSWORD")
        except SettingsError as error:
            raise UsageError(str(error)) from None
        if flags.sasl_user is None or password is None:
            raise UsageError(
                f"--security-protocol {flags.security_protocol} needs --security-sasl-user and"
                " --security-sasl-password"
            )
        settings |= {
            "sasl_mechanism": flags.sasl_mechanism,
            "sasl_plain_username": flags.sasl_user,
            "sasl_plain_password": password,
        }
    return settings


# -- errors --------------------------------------------------------------------------------------


def client_command(command: Callable[Arguments, Awaitable[int | None]]) -> Callable[Arguments, int]:
    """Make a command of an async function that uses a cluster; see `terminal.reports`."""

    @functools.wraps(command)
    async def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> int | None:
        with explained():
            return await command(*args, **kwargs)

    return runs(call)


@contextmanager
def explained() -> Iterator[None]:
    """Raise errors of the client as CommandError with a message for the user."""
    try:
        yield
    except kafka.KafkaConnectionError as error:
        asked = ", ".join(f"{host}:{port}" for host, port in _ADDRESS.findall(str(error)))
        raise CommandError(
            f"no Kafka broker answers at {asked or 'the given address'}; start one with"
            " `kmr broker serve --data DIR`, or name another with --bootstrap-servers"
        ) from error
    except kafka.UnknownTopicOrPartitionError as error:
        raise CommandError("the topic or the partition does not exist") from error
    except kafka.KafkaError as error:
        raise CommandError(_words(error)) from error


async def raise_refusal(settings: Mapping[str, Any]) -> None:
    """Connect to each address once more. Raises CommandError if a broker is there but refuses."""
    options = {name: value for name, value in settings.items() if name != "bootstrap_servers"}
    for host, port, _ in collect_hosts(settings["bootstrap_servers"]):
        address = f"{host}:{port}"
        try:
            async with asyncio.timeout(_REFUSAL_TIMEOUT):
                connection = await create_conn(host, port, **options)
        except (kafka.AuthenticationFailedError, kafka.SaslAuthenticationFailed) as error:
            raise CommandError(f"{address}: authentication failed ({_words(error)})") from error
        except kafka.UnsupportedSaslMechanismError as error:
            raise CommandError(
                f"{address}: the SASL mechanism is not supported ({_words(error)})"
            ) from error
        except ssl.SSLError as error:
            raise CommandError(
                f"{address}: TLS handshake failed ({error.reason or error}); see"
                " --security-ssl-cafile for a certificate that is not trusted, and"
                " --security-protocol for a broker without TLS"
            ) from error
        except ConnectionResetError as error:  # in the TLS handshake; else a KafkaError
            raise CommandError(
                f"{address}: the broker closes the connection; it may be without TLS"
                " (see --security-protocol)"
            ) from error
        except (TimeoutError, OSError):
            continue  # no broker is there
        except kafka.IllegalSaslStateError as error:
            raise CommandError(
                f"{address}: the broker takes no user and password (see --security-protocol)"
            ) from error
        except kafka.KafkaError:
            hint = "it may require TLS (see --security-protocol) or a client certificate"
        else:
            connection.close()
            hint = "it may require a user and a password (see --security-protocol)"
        raise CommandError(f"{address}: the broker closes the connection; {hint}")


def _words(error: kafka.KafkaError) -> str:
    """Return the error's own message, or else the general description of its class."""
    words = [str(each) for each in error.args if each]
    return ": ".join(words) or getattr(error, "description", "") or type(error).__name__


@contextmanager
def log_client_errors() -> Iterator[None]:
    """Write the client's errors to stderr while a long command runs, without floods of them."""
    client = logging.getLogger("aiokafka")
    level, propagate = client.level, client.propagate
    handler = ThrottledHandler()
    client.addHandler(handler)
    client.setLevel(logging.ERROR)
    client.propagate = False
    try:
        yield
    finally:
        client.removeHandler(handler)
        client.setLevel(level)
        client.propagate = propagate


class ThrottledHandler(logging.Handler):
    """Writes at most one message of each logger to stderr in 30 seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._written: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        now = self._now()
        if now - self._written.get(record.name, -_LOG_PAUSE) >= _LOG_PAUSE:
            self._written[record.name] = now
            complain(record.getMessage())
