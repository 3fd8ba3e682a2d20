"""SASL on one connection: the client chooses a mechanism, then proves its user (KIP-43, KIP-152)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, cast

import anyio
from anyio import to_thread

from .scram import HASHES, ScramError, ScramExchange

if TYPE_CHECKING:
    from collections.abc import Callable

    from .scram import ScramMechanism
    from .users import Users

MECHANISMS: Final = ("PLAIN", *HASHES)

_FAILURE_DELAY = 0.1  # seconds; slows down guessing on each connection


class AuthenticationFailed(Exception):
    """The message is for the client: it does not reveal whether the user exists."""


class SaslExchange:
    """The authentication of one connection, from its handshake to success or failure; then perhaps again.

    Attributes:
        user: who the client is, once it has proved it. It stays the same, and so does the mechanism.
        lifetime: seconds after which the client must prove it again; 0: never.
        complete: whether the client has proved it since its last handshake.
        bare_tokens: whether the client sends bare SASL messages, as after version 0 of the handshake.
    """

    def __init__(
        self,
        users: Users,
        *,
        on_begin: Callable[[], None],
        on_success: Callable[[str], None],
        on_failure: Callable[[str], None],
        checks: anyio.CapacityLimiter,
        lifetime: float = 0.0,
    ) -> None:
        """Begin with the handshake.

        `on_begin` is called when a client that has authenticated begins again, `on_success` with its name,
        `on_failure` with the reason, before the response. `checks` limits how many passwords are checked at
        the same time, on all connections.
        """
        self._users = users
        self._on_begin = on_begin
        self._on_success = on_success
        self._on_failure = on_failure
        self._checks = checks
        self.lifetime = lifetime
        self._mechanism: str | None = None
        self._scram: ScramExchange | None = None
        self._failed = False
        self.user: str | None = None
        self.complete = False
        self.bare_tokens = False

    def choose(self, mechanism: str, *, bare_tokens: bool) -> bool:
        """Begin with a mechanism; return False if it is not served."""
        if mechanism not in MECHANISMS:
            self._fail(f"mechanism {mechanism!r} is not served; use one of {', '.join(MECHANISMS)}")
            return False
        if self.user is not None:
            self.complete = False
            self._on_begin()
            if mechanism != self._mechanism:
                self._fail(f"the mechanism cannot change from {self._mechanism} to {mechanism}")
                return False
        self._mechanism = mechanism
        self._scram = None
        self.bare_tokens = bare_tokens
        if mechanism != "PLAIN":
            scram = cast("ScramMechanism", mechanism)
            find = partial(self._users.credential, mechanism=scram)
            self._scram = ScramExchange(scram, find)
        return True

    async def respond(self, message: bytes) -> bytes:
        """Answer one message of the client. Raise AuthenticationFailed."""
        try:
            if self._failed:
                raise AuthenticationFailed("authentication has failed; connect again")
            if self._mechanism is None:
                raise AuthenticationFailed("SaslAuthenticate came before SaslHandshake")
            if self._scram is None:
                return await self._plain(message)
            return self._scram_step(self._scram, message)
        except AuthenticationFailed as error:
            await anyio.sleep(_FAILURE_DELAY)
            self._fail(str(error))
            raise

    def _fail(self, reason: str) -> None:
        """Report the failure: a connection has one attempt."""
        if not self._failed:
            self._failed = True
            self._on_failure(reason)

    async def _plain(self, message: bytes) -> bytes:
        """Check the message of RFC 4616: the user to act as (the same one or none), user and password."""
        try:
            authorization, user, password = message.decode().split("\0")
        except ValueError:
            raise AuthenticationFailed("the PLAIN message is malformed") from None
        if authorization not in ("", user):
            raise AuthenticationFailed("a user cannot act as another user")
        matches = await to_thread.run_sync(
            self._users.check_password, user, password, limiter=self._checks
        )
        if not matches:
            raise self._wrong()
        self._succeed(user)
        return b""

    def _scram_step(self, scram: ScramExchange, message: bytes) -> bytes:
        try:
            if not scram.has_begun:
                return scram.begin(message)
            answer = scram.finish(message)
        except ScramError:
            raise self._wrong() from None
        self._succeed(scram.user)
        return answer

    def _succeed(self, user: str) -> None:
        if self.user not in (None, user):
            raise AuthenticationFailed("a client cannot become another user; connect again")
        self.user, self.complete, self.bare_tokens = user, True, False
        self._on_success(user)

    def _wrong(self) -> AuthenticationFailed:
        return AuthenticationFailed(
            f"authentication by {self._mechanism} failed: wrong user or password"
        )
