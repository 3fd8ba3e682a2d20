"""The schema registry of `kmr broker serve --registry-port`: beside the broker, as one of its clients."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio
from anyio import to_thread

from kmr.errors import KmrError, SettingsError
from kmr.registry.schemas_topic import SCHEMAS_TOPIC
from kmr.registry.server import ANONYMOUS as NO_USER
from kmr.registry.server import RegistryAccess, SchemaRegistry

from ..authorization.rules import ANONYMOUS, Authorizer, Operation, Question, Resource
from ..authorization.users import Users
from ..errors import BrokerError
from ..server.tls import server_context
from ..settings import is_loopback

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ..broker import Broker
    from ..settings import BrokerSettings

_PASSWORD_CHECKS: Final = 2  # at the same time
_REMEMBERED: Final = 1_000
_LARGEST_PORT: Final = 65_535


def check_registry(settings: BrokerSettings, port: int) -> None:
    """Raise SettingsError if a registry may not be served there."""
    if not 0 <= port <= _LARGEST_PORT:
        raise SettingsError(f"--registry-port must be a port, 0 to {_LARGEST_PORT}, not {port}")
    if not settings.insecure and not is_loopback(settings.http_host):
        settings.check_open_to_others("http_host", "use the schema registry")


@asynccontextmanager
async def registry_beside(broker: Broker, port: int) -> AsyncIterator[SchemaRegistry]:
    """Serve a registry over a broker that runs in this process. Raises BrokerError."""
    settings, local = broker.settings, broker.admit_client()
    tls = None
    if settings.tls_certificate and settings.tls_key:
        tls = server_context(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
    registry = SchemaRegistry(
        local.bootstrap_servers,
        host=settings.http_host,
        port=port,
        tls=tls,
        access=_Access(settings),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_plain_username=local.user,
        sasl_plain_password=local.password,
    )
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(registry)
        except KmrError as error:
            raise BrokerError(str(error)) from error
        yield registry


class _Access(RegistryAccess):
    """The broker's users and access rules, which it reads from their files itself.

    Reading needs the operation read on the topic `_schemas`, writing needs write.
    """

    def __init__(self, settings: BrokerSettings) -> None:
        self._users = Users(settings.users_file) if settings.users_file else None
        self.has_users = self._users is not None
        self._authorizer = None
        if settings.acl_file:
            self._authorizer = Authorizer(
                settings.acl_file,
                super_users=settings.super_users,
                allow_if_no_acl=settings.allow_if_no_acl,
            )
        self._checks = anyio.CapacityLimiter(_PASSWORD_CHECKS)
        self._accepted: dict[tuple[str, object], bytes] = {}

    async def is_password(self, user: str, password: str) -> bool:
        users = self._users
        if users is None:
            return False
        # A check takes 10 ms of CPU: a password that was accepted is remembered until the user changes.
        entry = (user, users.by_name.get(user))
        digest = users.fingerprint(user, password)
        if self._accepted.get(entry) == digest:
            return True
        if not await to_thread.run_sync(users.check_password, user, password, limiter=self._checks):
            return False
        if len(self._accepted) >= _REMEMBERED:
            self._accepted.clear()
        self._accepted[entry] = digest
        return True

    def allows(self, user: str, operation: str, host: str) -> bool:
        if self._authorizer is None:
            return True
        principal = ANONYMOUS if user == NO_USER else f"User:{user}"
        return self._authorizer.allows(
            Question(principal, Operation(operation), Resource.TOPIC, SCHEMAS_TOPIC, host)
        )
