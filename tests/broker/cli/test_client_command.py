"""Connection flags, refusals of a broker, and errors in the client's log."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from structlog.testing import capture_logs

from kmr.broker import Broker, BrokerSettings
from kmr.broker.cli.client_command import ThrottledHandler, log_client_errors

if TYPE_CHECKING:
    from pathlib import Path

    from tests.broker.cli.conftest import Offline


def test_a_repeated_error_is_written_once_in_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    handler = ThrottledHandler(lambda: now)
    for now in (0.0, 0.1, 29.0, 30.0, 31.0):
        for name in ("client", "group"):
            error = f"{name} failed at {now}"
            handler.emit(logging.LogRecord(name, logging.ERROR, "", 0, error, None, None))
    assert capsys.readouterr().err.splitlines() == [
        "kmr broker: client failed at 0.0",
        "kmr broker: group failed at 0.0",
        "kmr broker: client failed at 30.0",
        "kmr broker: group failed at 30.0",
    ]


def test_warnings_are_not_written_and_the_logger_is_restored(
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = logging.getLogger("aiokafka")
    before = (client.level, client.propagate, list(client.handlers))
    with log_client_errors():
        logging.getLogger("aiokafka.consumer").warning("rebalancing")
        logging.getLogger("aiokafka.consumer").error("gone")
    assert capsys.readouterr().err == "kmr broker: gone\n"
    assert (client.level, client.propagate, list(client.handlers)) == before


class Refused(NamedTuple):
    """A mistake of a client, and the message about it."""

    broker: str
    flags: str
    said: str


REFUSED = [
    Refused("users", "SASL_PLAINTEXT wrong", "wrong user or password"),
    Refused("users", "PLAINTEXT", "may require a user and a password"),
    Refused("tls", "PLAINTEXT", "may require TLS"),
    Refused("plain", "SSL", "may be without TLS"),
    Refused("plain", "SASL_PLAINTEXT wrong", "takes no user and password"),
    Refused("tls", "SSL", "TLS handshake failed"),
    Refused("tls mutual", "SSL trusted", "or a client certificate"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case.flags}: {case.said}")
async def test_a_command_reports_why_a_broker_refuses_it(
    offline: Offline, tmp_path: Path, certificates: Any, case: Refused
) -> None:
    users = tmp_path / "users.json"
    await asyncio.to_thread(offline, "user", "add", "alice", stdin="wonderland\n")
    settings = BrokerSettings(
        data_dir=tmp_path / "data",
        port=0,
        users_file=users if "users" in case.broker else None,
        tls_certificate=certificates.certificate if "tls" in case.broker else None,
        tls_key=certificates.key if "tls" in case.broker else None,
        tls_client_ca=certificates.authority if "mutual" in case.broker else None,
    )
    protocol, _, extra = case.flags.partition(" ")
    flags = ["--security-protocol", protocol]
    if extra == "wrong":
        flags += ["--security-sasl-user", "alice", "--security-sasl-password", "x"]
    elif extra == "trusted":
        flags += ["--security-ssl-cafile", str(certificates.authority)]
    with capture_logs():
        async with Broker(settings) as broker:
            arguments = ["topic", "list", "-b", broker.bootstrap_servers, *flags]
            code, out, said = await asyncio.to_thread(offline, *arguments)
    assert (code, out) == (1, "")
    assert case.said in said
    assert said.count("\n") == 1


async def test_commands_connect_with_the_right_flags(
    offline: Offline, tmp_path: Path, certificates: Any
) -> None:
    await asyncio.to_thread(offline, "user", "add", "alice", stdin="wonderland\n")
    settings = BrokerSettings(
        data_dir=tmp_path / "data",
        port=0,
        users_file=tmp_path / "users.json",
        tls_certificate=certificates.certificate,
        tls_key=certificates.key,
        tls_client_ca=certificates.authority,
    )
    with capture_logs():
        async with Broker(settings) as broker:
            await broker.topics.create("t")
            code, out, said = await asyncio.to_thread(
                offline,
                *("topic", "list", "-b", broker.bootstrap_servers),
                *("--security-protocol", "SASL_SSL", "--security-sasl-mechanism", "SCRAM-SHA-256"),
                *("--security-sasl-user", "alice", "--security-sasl-password", "wonderland"),
                *("--security-ssl-cafile", str(certificates.authority)),
                *("--security-ssl-certfile", str(certificates.client_certificate)),
                *("--security-ssl-keyfile", str(certificates.client_key)),
            )
    assert (code, said) == (0, "")
    assert out.splitlines()[1].split() == ["t", "1"]
