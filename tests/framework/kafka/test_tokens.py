"""OAUTHBEARER: where tokens come from, and that each connection sends one that is valid."""

from __future__ import annotations

import pickle
from base64 import b64decode
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import pytest
from aiokafka.errors import KafkaConnectionError

from kmr.broker.authorization.sasl import AuthenticationFailed, SaslExchange
from kmr.errors import BrokerUnavailable, ConsumerError, SettingsError
from kmr.kafka.admin import connect_admin
from kmr.kafka.connection import connection_config
from kmr.kafka.tokens import OAuthConfig, TokenProvider
from kmr.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kmr.testing import StartBroker

CALLS: list[int] = []
ME = __name__


def one_each() -> str:
    CALLS.append(len(CALLS))
    return f"token-{CALLS[-1]}"


def long_lived() -> tuple[str, float]:
    return one_each(), 3600.0


async def later() -> tuple[str, int]:
    return one_each(), 3600


def no_text() -> int:
    return 5


def malformed() -> str:
    return "malformed"


def fails() -> str:
    raise PermissionError("who are you")


@pytest.fixture(autouse=True)
def calls() -> None:
    CALLS.clear()


@pytest.mark.parametrize(
    ("provider", "expected"),
    [
        ("one_each", ["token-0", "token-1"]),
        ("long_lived", ["token-0", "token-0"]),
        ("later", ["token-0", "token-0"]),
    ],
)
async def test_a_token_is_kept_for_its_lifetime(provider: str, expected: list[str]) -> None:
    tokens = TokenProvider(OAuthConfig(provider=f"{ME}:{provider}"))
    assert [await tokens.token(), await tokens.token()] == expected


@pytest.mark.parametrize(
    ("provider", "message"), [("no_text", "it returned int"), ("fails", "PermissionError: who")]
)
async def test_a_provider_that_fails_is_named(provider: str, message: str) -> None:
    with pytest.raises(KafkaConnectionError, match=f"no token from {ME}:{provider}: .*{message}"):
        await TokenProvider(OAuthConfig(provider=f"{ME}:{provider}")).token()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "set either security.oauth_token_provider or security.oauth_token_url"),
        ({"provider": "a:b", "token_url": "https://x"}, "set either"),
        ({"token_url": "https://x"}, "needs security.oauth_client_id"),
        ({"token_url": "http://x.example", "client_id": "a", "client_secret": "b"}, "https://"),
        ({"provider": "no_such_module:x"}, "ModuleNotFoundError"),
        ({"provider": f"{ME}:no_such"}, "has no attribute"),
        ({"provider": f"{ME}:ME"}, "is a str; give a callable"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        TokenProvider(OAuthConfig(**options))


class _TokenServer(BaseHTTPRequestHandler):
    """Knows the client `kmr:a b` and counts its tokens."""

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        login = b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
        good = login == "kmr:a%20b" and form["grant_type"] == ["client_credentials"]
        self.send_response(200 if good else 401)
        self.end_headers()
        token = f'{{"access_token": "{form["scope"][0]}-{one_each()}", "expires_in": 3600}}'
        self.wfile.write(token.encode() if good else b"wrong client")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def token_url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _TokenServer)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/token"
    server.shutdown()
    thread.join()
    server.server_close()


async def test_client_id_and_secret_are_exchanged_for_a_token(token_url: str) -> None:
    config = OAuthConfig(token_url=token_url, client_id="kmr", client_secret="a b", scope="kafka")
    assert "a b" not in repr(config)
    tokens = TokenProvider(config)
    assert [await tokens.token(), await tokens.token()] == ["kafka-token-0"] * 2
    wrong = OAuthConfig(token_url=token_url, client_id="kmr", client_secret="x", scope="kafka")
    with pytest.raises(KafkaConnectionError, match="PermissionError: status 401: b'wrong client'"):
        await TokenProvider(wrong).token()


class _BearerExchange(SaslExchange):
    """Accepts any new token; the bundled broker has no OAUTHBEARER. Challenges one that is malformed."""

    seen: list[str]

    def choose(self, mechanism: str, *, bare_tokens: bool) -> bool:
        self.bare_tokens = bare_tokens
        return mechanism == "OAUTHBEARER"

    async def respond(self, message: bytes) -> bytes:
        token = message.decode().removeprefix("n,,\x01auth=Bearer ").rstrip("\x01")
        if "malformed" in token:
            return b'{"status": "invalid_token"}'
        if token in self.seen:
            raise AuthenticationFailed("the token has expired")
        self.seen.append(token)
        self._on_success("kmr")
        return b""


async def test_each_connection_sends_a_token_and_an_old_one_is_replaced(
    start_broker: StartBroker, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(_BearerExchange, "seen", seen, raising=False)
    monkeypatch.setattr("kmr.broker.server.connection.SaslExchange", _BearerExchange)
    monkeypatch.setattr("kmr.broker.apis.cluster.handshake.MECHANISMS", ("OAUTHBEARER",))
    users = tmp_path / "users.json"
    users.write_text('{"users": {}}')
    users.chmod(0o600)
    broker = await start_broker(users_file=users)

    def settings(provider: str) -> Settings:
        return Settings.load(
            flags={
                "topics": "t",
                "group": "g",
                "bootstrap_servers": broker.bootstrap_servers,
                "security.protocol": "SASL_PLAINTEXT",
                "security.sasl_mechanism": "OAUTHBEARER",
                "security.oauth_token_provider": f"{ME}:{provider}",
            }
        )

    config = connection_config(settings("one_each"))
    assert (
        pickle.loads(pickle.dumps(config.client_options())).keys() == config.client_options().keys()
    )
    async with connect_admin(config) as admin:
        assert await admin.list_group_offsets("g") == {}
    assert len(seen) > 1
    assert seen == [f"token-{number}" for number in range(len(seen))]
    CALLS.clear()  # the next token is one that was sent before
    with pytest.raises(ConsumerError, match="refuses OAUTHBEARER credentials: "):
        async with connect_admin(connection_config(settings("long_lived"))):
            pass
    refused = "refuses OAUTHBEARER credentials: .*the token is wrong or has expired"
    with pytest.raises(ConsumerError, match=refused):
        async with connect_admin(connection_config(settings("malformed"))):
            pass
    with pytest.raises(BrokerUnavailable, match=r"no token from .*PermissionError: who are you"):
        async with connect_admin(connection_config(settings("fails"))):
            pass


def test_settings_name_where_tokens_come_from() -> None:
    flags = {"topics": "t", "group": "g", "security.sasl_mechanism": "OAUTHBEARER"}
    with pytest.raises(
        SettingsError, match=r"OAUTHBEARER needs either security.oauth_token_provider"
    ):
        Settings.load(flags=flags | {"security.protocol": "SASL_SSL"})
    assert connection_config(Settings.load(flags=flags)).oauth is None
