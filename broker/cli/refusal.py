"""Why a broker that is there does not let us in: aiokafka only logs it."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any

from aiokafka.client import collect_hosts
from aiokafka.conn import create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)

from broker.cli.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["raise_refusal"]

_SECONDS = 5.0


async def raise_refusal(settings: Mapping[str, Any]) -> None:
    """Ask each address once more. Raises CommandError when one answers and refuses us."""
    options = {name: value for name, value in settings.items() if name != "bootstrap_servers"}
    for host, port, _ in collect_hosts(settings["bootstrap_servers"]):
        address = f"{host}:{port}"
        try:
            async with asyncio.timeout(_SECONDS):
                connection = await create_conn(host, port, **options)
        except (AuthenticationFailedError, SaslAuthenticationFailed) as error:
            raise CommandError(f"{address} refuses user and password: {_words(error)}") from error
        except UnsupportedSaslMechanismError as error:
            raise CommandError(
                f"{address} does not know this mechanism: {_words(error)}"
            ) from error
        except ssl.SSLError as error:
            raise CommandError(
                f"{address}: no TLS connection came about ({error.reason or error}); see"
                " --security-ssl-cafile for a certificate that is not trusted, and"
                " --security-protocol for a broker without TLS"
            ) from error
        except (TimeoutError, OSError):
            continue  # nobody is there
        except KafkaError:
            hint = "it may want TLS, see --security-protocol, or a certificate of ours"
        else:
            connection.close()
            hint = "it may want a user and a password, see --security-protocol"
        raise CommandError(f"{address} is there, but closes the connection: {hint}")


def _words(error: KafkaError) -> str:
    return ": ".join(str(each) for each in error.args) or type(error).__name__
