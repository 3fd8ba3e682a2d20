"""ApiVersions and authentication: requests of unauthenticated clients, limits of connections, TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from kmr.broker import Broker, BrokerSettings
from kmr.broker.authorization.users import make_user, write_users
from kmr.broker.errors import BrokerError
from kmr.errors import SettingsError

Start = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[Any]]
Until = Callable[[Callable[[], bool]], Awaitable[None]]

METADATA, HANDSHAKE, VERSIONS, AUTHENTICATE = 3, 17, 18, 36
RIGHT = b"\0alice\0wonderland"
WRONG = b"\0alice\0looking glass"
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("users") / "users.json"
    write_users(path, {"alice": make_user("wonderland", iterations=4096)})
    return path


@pytest.fixture
async def guarded(start: Start, users: Path) -> Broker:
    """A broker with the user alice."""
    return await start(users_file=users)


async def authenticate(client: Any, token: bytes = RIGHT) -> Any:
    assert (await client.call(HANDSHAKE, 1, mechanism="PLAIN")).error_code is ErrorCode.none
    return await client.call(AUTHENTICATE, 2, auth_bytes=token)


async def test_the_list_names_every_api_once(broker: Broker, connect: Connect) -> None:
    client = await connect(broker)
    response = await client.call(
        VERSIONS, 4, client_software_name="kmr", client_software_version="0.1"
    )
    keys = [each.api_key for each in response.api_keys]
    assert response.error_code is ErrorCode.none
    assert keys == sorted(set(keys))
    assert all(0 <= each.min_version <= each.max_version for each in response.api_keys)


@pytest.mark.parametrize(("name", "version"), [("", "1"), ("kmr", ""), ("a b", "1"), ("-a", "1")])
async def test_software_without_a_proper_name_is_refused(
    broker: Broker, connect: Connect, name: str, version: str
) -> None:
    client = await connect(broker)
    response = await client.call(
        VERSIONS, 3, client_software_name=name, client_software_version=version
    )
    assert response.error_code is ErrorCode.invalid_request
    assert response.api_keys


async def test_old_clients_need_not_name_themselves(broker: Broker, connect: Connect) -> None:
    client = await connect(broker)
    for version in range(3):
        assert (await client.call(VERSIONS, version)).error_code is ErrorCode.none


async def test_everything_is_served_after_authentication(guarded: Broker, connect: Connect) -> None:
    client = await connect(guarded)
    assert (await client.call(VERSIONS, 0)).error_code is ErrorCode.none
    answer = await authenticate(client)
    assert (answer.error_code, answer.auth_bytes) == (ErrorCode.none, b"")
    assert (await client.call(METADATA, 12, topics=None)).brokers


async def test_no_other_api_is_served_before_authentication(
    guarded: Broker, connect: Connect
) -> None:
    client = await connect(guarded)
    with capture_logs() as logs:
        await client.send(client.message(METADATA, 12, topics=None))
        assert await client.is_closed_by_broker()
    assert "before the client authenticated" in logs[0]["reason"]


async def test_wrong_credentials_are_refused_and_the_connection_ends(
    guarded: Broker, connect: Connect
) -> None:
    client = await connect(guarded)
    with capture_logs() as logs:
        answer = await authenticate(client, WRONG)
    assert [(each["log_level"], each["event"]) for each in logs] == [
        ("warning", "authentication failed")
    ]
    assert answer.error_code is ErrorCode.sasl_authentication_failed
    assert answer.error_message == "authentication by PLAIN failed: wrong user or password"
    again = await authenticate(client, RIGHT)  # one connection, one attempt
    assert again.error_code is ErrorCode.sasl_authentication_failed
    assert await client.is_closed_by_broker()


@pytest.mark.parametrize(
    "token", [b"", b"alice", b"\0alice", b"\0a\0b\0c", b"\xff\0a\0b", b"bob\0alice\0wonderland"]
)
async def test_malformed_credentials_are_refused(
    guarded: Broker, connect: Connect, token: bytes
) -> None:
    answer = await authenticate(await connect(guarded), token)
    assert answer.error_code is ErrorCode.sasl_authentication_failed


async def test_an_unknown_mechanism_is_answered_with_the_served_ones(
    guarded: Broker, connect: Connect
) -> None:
    client = await connect(guarded)
    answer = await client.call(HANDSHAKE, 1, mechanism="GSSAPI")
    assert answer.error_code is ErrorCode.unsupported_sasl_mechanism
    assert answer.mechanisms == ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    assert await client.is_closed_by_broker()


async def test_authenticating_without_a_handshake_is_refused(
    guarded: Broker, connect: Connect
) -> None:
    client = await connect(guarded)
    answer = await client.call(AUTHENTICATE, 1, auth_bytes=RIGHT)
    assert answer.error_code is ErrorCode.sasl_authentication_failed


async def test_authenticating_twice_or_without_users_is_refused(
    guarded: Broker, broker_without_users: Broker, connect: Connect
) -> None:
    client = await connect(guarded)
    await authenticate(client)
    for each in (client, await connect(broker_without_users)):
        answer = await each.call(HANDSHAKE, 1, mechanism="PLAIN")
        assert answer.error_code is ErrorCode.illegal_sasl_state
        answer = await each.call(AUTHENTICATE, 0, auth_bytes=RIGHT)
        assert answer.error_code is ErrorCode.illegal_sasl_state
        assert (await each.call(METADATA, 1, topics=[])).brokers


@pytest.fixture
async def broker_without_users(start: Start, tmp_path: Path) -> Broker:
    return await start(data_dir=tmp_path / "without users")


async def test_old_clients_send_their_tokens_bare(guarded: Broker, connect: Connect) -> None:
    """After version 0 of the handshake, as of clients before Kafka 1.0."""
    client = await connect(guarded)
    assert (await client.call(HANDSHAKE, 0, mechanism="PLAIN")).error_code is ErrorCode.none
    await client.send_bytes(pack(">i", len(RIGHT)) + RIGHT)
    assert await client.receive_frame() == b""
    assert (await client.call(METADATA, 1, topics=[])).brokers


async def test_a_wrong_bare_token_closes_the_connection(guarded: Broker, connect: Connect) -> None:
    client = await connect(guarded)
    await client.call(HANDSHAKE, 0, mechanism="PLAIN")
    await client.send_bytes(pack(">i", len(WRONG)) + WRONG)
    assert await client.is_closed_by_broker()


async def test_a_restart_does_not_tell_which_users_exist(
    connect: Connect, users: Path, tmp_path: Path
) -> None:
    """The salt of a user stays the same, and so does that of a name without a user."""

    async def first_answers() -> list[str]:
        answers = []
        settings = BrokerSettings(data_dir=tmp_path / "data", port=0, users_file=users)
        async with Broker(settings) as broker:
            for user in ("alice", "bob"):
                client = await connect(broker)
                await client.call(HANDSHAKE, 1, mechanism="SCRAM-SHA-256")
                begin = f"n,,n={user},r=nonce".encode()
                answer = await client.call(AUTHENTICATE, 2, auth_bytes=begin)
                _, salt, _ = answer.auth_bytes.decode().split(",")
                answers.append(salt)
                await client.close()
        return answers

    assert await first_answers() == await first_answers()


async def test_requests_are_small_until_the_client_has_authenticated(
    guarded: Broker, connect: Connect
) -> None:
    client = await connect(guarded)
    await client.send_bytes(pack(">i", 64 * 1024 + 1))
    assert await client.is_closed_by_broker()
    client = await connect(guarded)
    await authenticate(client)
    await client.send_bytes(pack(">i", MIB) + pack(">hhih", 0, 3, 1, -1))
    other = await connect(guarded)
    await authenticate(other)
    assert not client.reader.at_eof()


async def test_clients_that_do_not_authenticate_in_time_are_disconnected(
    start: Start, users: Path, connect: Connect
) -> None:
    broker = await start(users_file=users, authentication_timeout=2)
    patient = await connect(broker)
    await authenticate(patient)
    client = await connect(broker)
    async with asyncio.timeout(60):
        while not client.reader.at_eof():  # its messages do not extend the time
            try:
                await client.call(VERSIONS, 0)
            except (ConnectionError, asyncio.IncompleteReadError):
                break
            await asyncio.sleep(0.05)
    assert (await patient.call(METADATA, 1, topics=[])).brokers


async def test_connections_that_have_not_authenticated_are_limited(
    start: Start, users: Path, connect: Connect
) -> None:
    broker = await start(users_file=users, max_unauthenticated_connections=2)
    first, second = await connect(broker), await connect(broker)
    await first.call(VERSIONS, 0)
    await second.call(VERSIONS, 0)
    third = await connect(broker)
    assert await third.is_closed_by_broker()
    await authenticate(first)
    fourth = await connect(broker)
    await authenticate(fourth)
    assert (await second.call(VERSIONS, 0)).error_code is ErrorCode.none


async def test_connections_of_one_address_are_limited(
    start: Start, connect: Connect, until: Until
) -> None:
    broker = await start(max_connections_per_address=1)
    first = await connect(broker)
    await first.call(VERSIONS, 0)
    second = await connect(broker)
    assert await second.is_closed_by_broker()
    await first.close()
    async with asyncio.timeout(60):  # until the broker has seen it
        while True:
            third = await connect(broker)
            try:
                await third.call(VERSIONS, 0)
                break
            except (ConnectionError, asyncio.IncompleteReadError):
                await third.close()


# -- TLS -------------------------------------------------------------------------------------------


async def test_old_versions_of_tls_are_refused(start: Start, certificates: Any) -> None:
    broker = await start(tls_certificate=certificates.certificate, tls_key=certificates.key)
    host, _, port = broker.bootstrap_servers.partition(":")
    context = ssl.create_default_context(cafile=certificates.authority)
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection(host, int(port), ssl=context)


async def test_a_client_that_uses_tls_with_a_plain_broker_is_logged(
    start: Start, certificates: Any
) -> None:
    broker = await start()
    host, _, port = broker.bootstrap_servers.partition(":")
    context = ssl.create_default_context(cafile=certificates.authority)
    with capture_logs() as logs, pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection(host, int(port), ssl=context)
    assert "uses TLS" in logs[0]["reason"]


async def test_a_plain_client_of_a_tls_broker_is_disconnected_and_no_longer_counted(
    start: Start, certificates: Any, connect: Connect
) -> None:
    broker = await start(
        tls_certificate=certificates.certificate,
        tls_key=certificates.key,
        max_unauthenticated_connections=1,
    )
    client = await connect(broker)
    await client.send_bytes(pack(">ihhih", 10, VERSIONS, 0, 1, -1))
    while await client.reader.read(100):
        pass  # a message of the TLS library
    context = ssl.create_default_context(cafile=certificates.authority)
    host, _, port = broker.bootstrap_servers.partition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    writer.close()
    await writer.wait_closed()


async def test_a_client_that_never_begins_tls_is_disconnected(
    start: Start, certificates: Any, connect: Connect
) -> None:
    broker = await start(
        tls_certificate=certificates.certificate,
        tls_key=certificates.key,
        authentication_timeout=0.2,
    )
    client = await connect(broker)
    async with asyncio.timeout(60):
        assert await client.is_closed_by_broker()


async def test_a_broker_stops_while_clients_are_in_the_tls_handshake(
    start: Start, certificates: Any, connect: Connect, tmp_path: Path
) -> None:
    settings = BrokerSettings(
        data_dir=tmp_path / "stopped",
        port=0,
        tls_certificate=certificates.certificate,
        tls_key=certificates.key,
    )
    async with Broker(settings) as broker:
        client = await connect(broker)
        await client.send_bytes(b"\x16\x03\x01")
    assert await client.is_closed_by_broker()


async def test_unusable_certificates_are_named(
    start: Start, certificates: Any, tmp_path: Path
) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    pair = {"tls_certificate": certificates.certificate, "tls_key": certificates.key}
    for change in (
        {"tls_certificate": nonsense},
        {"tls_certificate": tmp_path / "missing.pem"},
        {"tls_key": certificates.client_key},  # of another certificate
        {"tls_client_ca": nonsense},
    ):
        with pytest.raises(BrokerError, match="cannot use") as raised:
            await start(**{**pair, **change})
        assert str(next(iter(change.values()))) in str(raised.value)


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "kafka.example"])
def test_other_machines_are_let_in_only_with_encryption_and_authentication(host: str) -> None:
    data, pem = Path("d"), Path("x.pem")
    tls: dict[str, Any] = {"tls_certificate": pem, "tls_key": pem}
    with pytest.raises(SettingsError, match=r"without encryption: .*; without authentication: "):
        BrokerSettings(data_dir=data, host=host)
    with pytest.raises(SettingsError, match="without authentication: set users_file"):
        BrokerSettings(data_dir=data, host=host, **tls)
    with pytest.raises(SettingsError, match="without encryption: set tls_certificate"):
        BrokerSettings(data_dir=data, host=host, users_file=pem)
    BrokerSettings(data_dir=data, host=host, users_file=pem, **tls)
    BrokerSettings(data_dir=data, host=host, tls_client_ca=pem, **tls)
    BrokerSettings(data_dir=data, host=host, insecure=True)


def test_settings_of_tls_go_together() -> None:
    pem = Path("x.pem")
    with pytest.raises(SettingsError, match="tls_certificate and tls_key go together"):
        BrokerSettings(data_dir=pem, tls_key=pem)
    with pytest.raises(SettingsError, match="tls_client_ca needs tls_certificate"):
        BrokerSettings(data_dir=pem, tls_client_ca=pem)
