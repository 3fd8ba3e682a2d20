"""The SASL exchange of one connection: success, failure, and what a client learns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from kmr.broker.authorization import sasl
from kmr.broker.authorization.sasl import AuthenticationFailed, SaslExchange
from kmr.broker.authorization.users import Users, make_user, write_users

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Outcome:
    """An exchange, and the calls that report its end."""

    def __init__(self, users: Users) -> None:
        self.users: list[str] = []
        self.begun: list[str | None] = []
        self.failures: list[str] = []
        self.exchange = SaslExchange(
            users,
            on_begin=lambda: self.begun.append(self.exchange.user),
            on_success=self.users.append,
            on_failure=self.failures.append,
            checks=anyio.CapacityLimiter(1),
        )


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Outcome]:
    monkeypatch.setattr(sasl, "_FAILURE_DELAY", 0.0)
    write_users(
        tmp_path / "users.json", {"anna": make_user("secret"), "berta": make_user("secret too")}
    )
    users = Users(tmp_path / "users.json")
    return lambda: Outcome(users)


async def test_plain_proves_the_user_by_the_password(begin: Callable[[], Outcome]) -> None:
    outcome = begin()
    assert outcome.exchange.choose("PLAIN", bare_tokens=False)
    assert await outcome.exchange.respond(b"\0anna\0secret") == b""
    assert (outcome.users, outcome.failures) == (["anna"], [])


@pytest.mark.parametrize("message", [b"\0anna\0wrong", b"\0nobody\0secret"])
async def test_a_client_does_not_learn_whether_the_user_exists(
    begin: Callable[[], Outcome], message: bytes
) -> None:
    outcome = begin()
    outcome.exchange.choose("PLAIN", bare_tokens=False)
    with pytest.raises(AuthenticationFailed) as refused:
        await outcome.exchange.respond(message)
    assert str(refused.value) == "authentication by PLAIN failed: wrong user or password"
    assert outcome.users == []


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"anna", "the PLAIN message is malformed"),
        (b"\xff\0anna\0secret", "the PLAIN message is malformed"),
        (b"berta\0anna\0secret", "a user cannot act as another user"),
    ],
)
async def test_a_wrong_plain_message_is_refused_with_its_reason(
    begin: Callable[[], Outcome], message: bytes, reason: str
) -> None:
    outcome = begin()
    outcome.exchange.choose("PLAIN", bare_tokens=False)
    with pytest.raises(AuthenticationFailed, match=reason):
        await outcome.exchange.respond(message)
    assert outcome.failures == [reason]


async def test_a_connection_has_one_attempt(begin: Callable[[], Outcome]) -> None:
    outcome = begin()
    outcome.exchange.choose("PLAIN", bare_tokens=False)
    for message in (b"\0anna\0wrong", b"\0anna\0secret"):
        with pytest.raises(AuthenticationFailed):
            await outcome.exchange.respond(message)
    assert outcome.users == []
    assert len(outcome.failures) == 1


async def test_a_user_authenticates_again_by_the_same_mechanism(
    begin: Callable[[], Outcome],
) -> None:
    outcome = begin()
    for complete in (False, True):
        assert outcome.exchange.complete is complete
        outcome.exchange.choose("PLAIN", bare_tokens=False)
        assert not outcome.exchange.complete
        await outcome.exchange.respond(b"\0anna\0secret")
    assert (outcome.users, outcome.begun, outcome.failures) == (["anna"] * 2, ["anna"], [])


async def test_a_user_does_not_become_another_when_it_authenticates_again(
    begin: Callable[[], Outcome],
) -> None:
    outcome = begin()
    outcome.exchange.choose("PLAIN", bare_tokens=False)
    await outcome.exchange.respond(b"\0anna\0secret")
    outcome.exchange.choose("PLAIN", bare_tokens=False)
    with pytest.raises(AuthenticationFailed, match="cannot become another user"):
        await outcome.exchange.respond(b"\0berta\0secret too")
    assert (outcome.users, outcome.exchange.complete) == (["anna"], False)


async def test_a_mechanism_does_not_change_when_a_user_authenticates_again(
    begin: Callable[[], Outcome],
) -> None:
    outcome = begin()
    outcome.exchange.choose("PLAIN", bare_tokens=False)
    await outcome.exchange.respond(b"\0anna\0secret")
    assert not outcome.exchange.choose("SCRAM-SHA-256", bare_tokens=False)
    assert outcome.failures == ["the mechanism cannot change from PLAIN to SCRAM-SHA-256"]
    with pytest.raises(AuthenticationFailed, match="authentication has failed"):
        await outcome.exchange.respond(b"\0anna\0secret")


async def test_a_message_before_the_handshake_is_refused(begin: Callable[[], Outcome]) -> None:
    with pytest.raises(AuthenticationFailed, match="came before SaslHandshake"):
        await begin().exchange.respond(b"\0anna\0secret")


def test_a_mechanism_that_is_not_served_is_refused(begin: Callable[[], Outcome]) -> None:
    outcome = begin()
    assert not outcome.exchange.choose("GSSAPI", bare_tokens=False)
    assert "use one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512" in outcome.failures[0]
