"""Tokens for SASL OAUTHBEARER: from a callable of the user, or by OAuth's client credentials.

A token is fetched when a connection is made, and kept for four fifths of its lifetime. A broker that limits a
session to the lifetime of its token closes the connection then; the client connects again, with a new token.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

import anyio
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError

from ..errors import SettingsError, reason_of
from ..service.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

_TIMEOUT: Final = 15.0  # seconds until there is a token
_SHARE: Final = 0.8  # the part of its lifetime for which a token is kept
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, kw_only=True)
class OAuthConfig:
    """Where tokens come from: exactly one of `provider` and `token_url` is set.

    Attributes:
        provider: `module:attribute`: a callable without arguments, plain or `async def`. It returns a token,
            which is used for one connection; or a pair of a token and its lifetime in seconds.
        token_url: where client id and secret are exchanged for a token (RFC 6749, section 4.4).
        scope: of the token that is asked for; None: the server's default.

    Raises:
        SettingsError: a value is missing, or does not fit another.
    """

    provider: str | None = None
    token_url: str | None = None
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    scope: str | None = None

    def __post_init__(self) -> None:
        if (self.provider is None) == (self.token_url is None):
            raise SettingsError(
                "OAUTHBEARER needs a token: set either security.oauth_token_provider or "
                "security.oauth_token_url"
            )
        if self.token_url is None:
            return
        if not self.client_id or not self.client_secret:
            raise SettingsError(
                "security.oauth_token_url needs security.oauth_client_id and security.oauth_client_secret"
            )
        url = urlsplit(self.token_url)
        if url.scheme != "https" and not (url.scheme == "http" and url.hostname in _LOOPBACK):
            raise SettingsError(
                f"security.oauth_token_url must begin with https://, not {self.token_url!r}: it gets a secret"
            )


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    """Gives aiokafka the token for each connection; used on one event loop.

    Raises:
        SettingsError: there is no such callable.
    """

    def __init__(self, config: OAuthConfig) -> None:
        self._config = config
        self._call = None if config.provider is None else _load(config.provider)
        self._token = ""
        self._until = 0.0

    async def token(self) -> str:
        """Return a token that is valid now.

        Raises:
            KafkaConnectionError: none is to be had; names the reason. The connection is tried again.
        """
        if time.monotonic() >= self._until:
            origin = self._config.provider or self._config.token_url
            try:
                with anyio.fail_after(_TIMEOUT):
                    token, lifetime = await self._fetch()
            except Exception as error:
                raise KafkaConnectionError(f"no token from {origin}: {reason_of(error)}") from error
            self._token, self._until = token, time.monotonic() + lifetime * _SHARE
        return self._token

    async def _fetch(self) -> tuple[str, float]:
        """Return a token, and its lifetime in seconds."""
        if self._call is None:
            return await run_in_thread(self._by_client_credentials, abandon_on_cancel=True)
        if inspect.iscoroutinefunction(self._call):
            found = await self._call()
        else:
            found = await run_in_thread(self._call, abandon_on_cancel=True)
        token, lifetime = found if isinstance(found, tuple) else (found, 0.0)
        if not isinstance(token, str) or not token:
            raise TypeError(
                f"it returned {type(token).__name__}; return a text, or (text, seconds)"
            )
        return token, float(lifetime)

    def _by_client_credentials(self) -> tuple[str, float]:
        import urllib3  # takes time to import

        config = self._config
        # RFC 6749, section 2.3.1: encoded as a form before they are joined.
        pair = ":".join(
            quote(part or "", safe="") for part in (config.client_id, config.client_secret)
        )
        form = {"grant_type": "client_credentials"} | (
            {} if config.scope is None else {"scope": config.scope}
        )
        with urllib3.PoolManager(retries=False, timeout=_TIMEOUT) as pool:
            answer = pool.request(
                "POST",
                config.token_url or "",
                body=urlencode(form),
                headers={
                    "Content-Type": "application/x-www-form-urlencoded",
                    "Accept": "application/json",
                    **urllib3.make_headers(basic_auth=pair),
                },
            )
            if answer.status != 200:
                raise PermissionError(f"status {answer.status}: {answer.data[:200]!r}")
            found: dict[str, Any] = json.loads(answer.data)
        return found["access_token"], float(found.get("expires_in", 0))


def _load(path: str) -> Callable[[], Any]:
    name, _, attribute = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(
            f"security.oauth_token_provider {path!r} cannot be loaded ({reason_of(error)}); "
            "give it as module:attribute"
        ) from error
    if not callable(found):
        raise SettingsError(
            f"security.oauth_token_provider {path!r} is a {type(found).__name__}; give a callable"
        )
    call: Callable[[], Any] = found
    return call
