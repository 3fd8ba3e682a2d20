"""Connect Kafka clients and disconnect them in bounded time; errors say what to change."""
# ruff: noqa: SLF001  aiokafka's internals, see kmr.kafka.fetching

from __future__ import annotations

import asyncio
import logging
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from ssl import SSLCertVerificationError, SSLContext, SSLError
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import anyio
import structlog
from aiokafka.client import AIOKafkaClient, collect_hosts
from aiokafka.conn import create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    IllegalSaslStateError,
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
)
from aiokafka.helpers import create_ssl_context
from aiokafka.protocol.group import LeaveGroupRequest
from aiokafka.protocol.metadata import MetadataRequest
from anyio.lowlevel import checkpoint

from ..config.schema import ADDRESSES
from ..errors import BrokerUnavailable, ConsumerError, SettingsError
from ..service.deadline import shield
from .receiving import receive_in_place
from .subscription import Subscription
from .tokens import OAuthConfig, TokenProvider

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..settings import (
        ClusterSettings,
        GroupSettings,
        IsolationLevel,
        OffsetReset,
        SaslMechanism,
        SecurityProtocol,
        SecuritySettings,
        Settings,
    )

_log = structlog.get_logger(__name__)

_PROBE_TIMEOUT = 5.0  # seconds, for each address
_TOPIC_TIMEOUT = 5.0  # seconds until a broker knows a topic that was created by another one
_SIMILAR = 0.7  # the least ratio of similar names, see difflib
_RETRY_AFTER = 0.2  # seconds
_DROP_TIMEOUT = 1.0  # seconds
_MISSING_TOPIC = "Topic %s not found in cluster metadata"
_STOP_SHARE = 0.6  # the part of the time to disconnect that an orderly stop has


def _is_ours_to_say(record: logging.LogRecord) -> bool:
    """Return False for aiokafka's message of a missing topic, which `require_topics` reports once."""
    return record.msg != _MISSING_TOPIC


logging.getLogger("aiokafka.cluster").addFilter(_is_ours_to_say)


@dataclass(frozen=True, kw_only=True)
class ConnectionConfig:
    """Addresses, encryption and credentials of a cluster.

    Attributes:
        bootstrap_servers: `host:port,host:port`; one reachable broker is enough to find the others.
        client_id: our name in the brokers' logs and quotas.
        request_timeout: seconds after which a request without a response has failed.
        metadata_max_age: seconds between refreshes of topics and leaders: the longest time until new
            partitions are seen.
        oauth: where tokens come from; with the mechanism OAUTHBEARER only.
        ssl_cafile: certificates to trust (PEM); by default those of the system.
        ssl_certfile: our certificate (PEM), for mutual TLS.
        ssl_keyfile: its private key (PEM).
        ssl_check_hostname: whether the broker's certificate must carry the host name we connect to.
    """

    bootstrap_servers: str
    client_id: str = "kmr"
    request_timeout: float = 40.0
    metadata_max_age: float = 60.0
    security_protocol: SecurityProtocol = "PLAINTEXT"
    sasl_mechanism: SaslMechanism = "PLAIN"
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    oauth: OAuthConfig | None = None
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_key_password: str | None = field(default=None, repr=False)
    ssl_check_hostname: bool = True

    def __post_init__(self) -> None:
        """Raise `SettingsError` for values that do not fit together."""
        if not re.match(ADDRESSES, self.bootstrap_servers):
            raise SettingsError(
                f"bootstrap_servers must be host:port, or several separated by commas, not "
                f"{self.bootstrap_servers!r}"
            )
        is_sasl, by_token = self.security_protocol.startswith("SASL"), self.oauth is not None
        if is_sasl and by_token != (self.sasl_mechanism == "OAUTHBEARER"):
            raise SettingsError("sasl_mechanism OAUTHBEARER and oauth go together")
        if is_sasl and not by_token and not (self.sasl_username and self.sasl_password):
            raise SettingsError(
                f"security_protocol {self.security_protocol} needs sasl_username and sasl_password"
            )

    def client_options(self) -> dict[str, Any]:
        """Keyword arguments for aiokafka's clients; they can be pickled.

        Raises `SettingsError` when a certificate, a key or the provider of tokens cannot be loaded.
        """
        return _ClientOptions(self)

    def _client_options(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "client_id": self.client_id,
            "request_timeout_ms": round(self.request_timeout * 1000),
            "metadata_max_age_ms": round(self.metadata_max_age * 1000),
            "security_protocol": self.security_protocol,
            "sasl_mechanism": self.sasl_mechanism,
            "sasl_plain_username": self.sasl_username,
            "sasl_plain_password": self.sasl_password,
            "sasl_oauth_token_provider": None
            if self.oauth is None or not self.security_protocol.startswith("SASL")
            else TokenProvider(self.oauth),
            "ssl_context": self._ssl_context() if "SSL" in self.security_protocol else None,
        }

    @property
    def tls_files(self) -> list[str]:
        """The files of certificates and keys that are used."""
        if "SSL" not in self.security_protocol:
            return []
        return [each for each in (self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile) if each]

    def _ssl_context(self) -> SSLContext:
        try:
            context: SSLContext = create_ssl_context(
                cafile=self.ssl_cafile,
                certfile=self.ssl_certfile,
                keyfile=self.ssl_keyfile,
                password=self.ssl_key_password,
            )
        except (OSError, SSLError) as error:
            files = ", ".join(self.tls_files)
            raise SettingsError(f"cannot load TLS files {files}: {error}") from error
        context.check_hostname = self.ssl_check_hostname
        return context


class _ClientOptions(dict[str, Any]):
    """Options that are made again where they are unpickled: TLS contexts cannot travel to tasks of Spark."""

    def __init__(self, config: ConnectionConfig) -> None:
        super().__init__(config._client_options())
        self._config = config

    def __reduce__(self) -> tuple[type[_ClientOptions], tuple[ConnectionConfig]]:
        return _ClientOptions, (self._config,)


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ConnectionConfig):
    """A worker's consumer. `kmr.settings` describes the fields without a default, and has their defaults.

    Attributes:
        group_instance_id: a member name that survives restarts (static membership, KIP-345): the broker
            keeps the partitions for this member until `session_timeout` has passed, and stopping does
            not leave the group.
        on_out_of_range: `earliest` and `latest` skip records, which is logged as an ERROR.
        max_partition_fetch_bytes: the most bytes of one partition in a fetch response; a larger record
            batch still comes whole.
        fetch_max_bytes: the most bytes of a fetch response. A consumer holds at most two responses per
            broker besides the batches that `poll` has returned: one that arrives, and the batches of
            paused partitions.
        fetch_max_wait: seconds that the broker waits for records before it answers with none.
        session_timeout: brokers accept 6 s to 30 min.
        heartbeat_interval: also the longest time until we hear of a rebalance.
        rebalance_timeout: the time that `Listener.revoked` has, in seconds; after it we are no longer a
            member and commits are fenced. A consumer's `request_timeout` is at least 5 seconds more.
        commit_timeout: seconds for which a commit is retried while the coordinator is unreachable.
        stop_timeout: seconds that `Consumer.stop` waits for the broker.
    """

    group: str
    topics: tuple[str, ...]
    topic_pattern: str | None = None
    group_instance_id: str | None = None
    client_rack: str | None = None
    auto_offset_reset: OffsetReset
    on_out_of_range: OffsetReset
    isolation_level: IsolationLevel
    max_partition_fetch_bytes: int
    fetch_max_bytes: int
    fetch_max_wait: float
    session_timeout: float
    heartbeat_interval: float
    rebalance_timeout: float
    commit_timeout: float = 15.0
    stop_timeout: float = 5.0

    @property
    def subscription(self) -> Subscription:
        """The topics that are read."""
        return Subscription(self.topics, self.topic_pattern)


def connection_config(settings: Settings | GroupSettings | ClusterSettings) -> ConnectionConfig:
    """Return the connection of producers and admin clients. Raises SettingsError."""
    return ConnectionConfig(**_connection(settings))


def consumer_config(settings: Settings) -> ConsumerConfig:
    """Return the configuration of the worker's consumer. Raises SettingsError."""
    return ConsumerConfig(
        group=settings.group,
        topics=settings.topics,
        topic_pattern=settings.topic_pattern,
        group_instance_id=settings.group_instance_id,
        client_rack=settings.client_rack,
        auto_offset_reset=settings.auto_offset_reset,
        on_out_of_range=settings.on_out_of_range,
        isolation_level=settings.isolation_level,
        max_partition_fetch_bytes=settings.partition_bytes,
        fetch_max_bytes=settings.response_bytes,
        fetch_max_wait=settings.fetch.max_wait,
        session_timeout=settings.session_timeout,
        heartbeat_interval=settings.heartbeat_interval,
        metadata_max_age=settings.metadata_max_age,
        rebalance_timeout=settings.rebalance_timeout,
        **_connection(settings),
    )


def _connection(settings: Settings | GroupSettings | ClusterSettings) -> dict[str, Any]:
    security = settings.security
    return {
        "bootstrap_servers": settings.bootstrap_servers,
        "client_id": settings.client_id,
        "security_protocol": security.protocol,
        "sasl_mechanism": security.sasl_mechanism,
        "sasl_username": security.sasl_user,
        "sasl_password": security.sasl_password,
        "oauth": oauth_config(security),
        "ssl_cafile": security.ssl_cafile,
        "ssl_certfile": security.ssl_certfile,
        "ssl_keyfile": security.ssl_keyfile,
        "ssl_check_hostname": security.ssl_check_hostname,
    }


def oauth_config(security: SecuritySettings) -> OAuthConfig | None:
    """Return where tokens come from; None without OAUTHBEARER. Raises SettingsError."""
    if security.sasl_mechanism != "OAUTHBEARER" or not security.protocol.startswith("SASL"):
        return None
    return OAuthConfig(
        provider=security.oauth_token_provider,
        token_url=security.oauth_token_url,
        client_id=security.oauth_client_id,
        client_secret=security.oauth_client_secret,
        scope=security.oauth_scope,
    )


async def connect(consumer: Any, config: ConnectionConfig) -> None:
    """Start an `AIOKafkaConsumer` that has no subscription yet; close it if that fails.

    It never creates a topic, even if the broker would.

    Raises:
        BrokerUnavailable: no address answers as a Kafka broker; names the reason for each.
        ConsumerError: a broker refuses our credentials.
    """
    _never_create_topics(consumer._client)
    receive_in_place(consumer._client)
    try:
        await consumer.start()
        if not consumer._client.cluster.brokers():  # a broker that refuses a token names none
            await checkpoint()  # aiokafka cannot stop tasks that have not begun
            raise KafkaConnectionError("no broker is named in the metadata")
    except KafkaError as error:
        await consumer.stop()
        try:
            await reach_broker(config)
        except ConsumerError as reason:  # aiokafka only logs why an address did not answer
            raise reason from error
        raise BrokerUnavailable(
            f"no Kafka broker answered at {config.bootstrap_servers}, but one answers now: try again"
        ) from error
    except BaseException:
        with anyio.CancelScope(shield=True):
            await consumer.stop()
        raise


async def reach_broker(config: ConnectionConfig, options: dict[str, Any] | None = None) -> None:
    """Return if a broker answers at one of the addresses, tried one after the other.

    Args:
        options: those of a client that is there; made of `config` by default.

    Raises:
        BrokerUnavailable: no address answers as a Kafka broker; names the reason for each.
        ConsumerError: a broker refuses our credentials.
    """
    options = dict(config.client_options() if options is None else options)
    servers = options.pop("bootstrap_servers")
    options.pop("metadata_max_age_ms")
    options["request_timeout_ms"] = round(_PROBE_TIMEOUT * 1000)
    reasons = []
    for host, port, _ in collect_hosts(servers):
        try:
            with anyio.fail_after(_PROBE_TIMEOUT):
                connection = await create_conn(host, port, **options)
                try:
                    await _require_answer(connection, config)
                finally:
                    connection.close()
            return
        except (AuthenticationFailedError, SaslAuthenticationFailed) as error:
            raise ConsumerError(
                f"{host}:{port} refuses {config.sasl_mechanism} credentials"
                f"{f' of {config.sasl_username!r}' if config.oauth is None else ''}: {error}"
            ) from error
        except IllegalSaslStateError as error:
            raise ConsumerError(
                f"{host}:{port} takes no user and password, but security.protocol is "
                f"{config.security_protocol}; set it as the listener of the broker is"
            ) from error
        except SSLCertVerificationError as error:
            raise ConsumerError(
                f"{host}:{port} has a certificate that is not accepted: {error.verify_message}; see "
                "security.ssl_cafile, which has the certificates to trust"
            ) from error
        except TimeoutError:
            reasons.append(f"{host}:{port}: no answer in {_PROBE_TIMEOUT:g} s")
        except (OSError, KafkaError) as error:
            reasons.append(f"{host}:{port}: {_reason(error, config)}")
    raise BrokerUnavailable(f"no Kafka broker answers at bootstrap_servers ({'; '.join(reasons)})")


def _reason(error: OSError | KafkaError, config: ConnectionConfig) -> str:
    """Return why an address did not answer: with the setting to change, where something is there."""
    encrypted = "SSL" in config.security_protocol
    if isinstance(error, SSLError):
        return f"TLS fails ({error.reason or error}); see security.protocol and security.ssl_*"
    # With OAuth the error means that there is no token.
    closed = isinstance(error, KafkaConnectionError) and config.oauth is None
    if closed or isinstance(error, ConnectionResetError):
        other = "require TLS, or a user and a password; see security.protocol"
        if encrypted:
            other = "be without TLS; see security.protocol. Or it refuses security.ssl_certfile"
        return f"it closes the connection: it may {other}"
    if isinstance(error, OSError):  # asyncio's own text does not name the cause
        number = error.errno or 0
        return os.strerror(number) if number > 0 else str(error)
    return str(error)


async def _require_answer(connection: Any, config: ConnectionConfig) -> None:
    """Return if a broker answers the first request that needs a user.

    A broker answers a wrong token with a challenge (RFC 7628), which aiokafka takes for a success. The
    broker refuses the next request, because the connection is still to be authenticated: Apache Kafka names
    no brokers, others disconnect. So it does for a client that has no user.

    Raises:
        SaslAuthenticationFailed: our token was refused.
        KafkaConnectionError: the broker closed the connection.
    """
    try:
        answer = await connection.send(MetadataRequest([]))
    except KafkaConnectionError:
        if config.oauth is None:
            raise
        answer = None
    if config.oauth is not None and (answer is None or not answer.brokers):
        raise SaslAuthenticationFailed("the token is wrong or has expired")


async def require_topics(client: Any, config: ConnectionConfig, topics: tuple[str, ...]) -> None:
    """Wait until the brokers know the topics, which may have been created just now; never create one.

    Raises `ConsumerError` for topics that do not exist, or that we may not read.
    """
    missing = list(topics)
    with anyio.move_on_after(_TOPIC_TIMEOUT):
        await client.set_topics(topics)
        while True:
            forbidden = sorted(client.cluster.unauthorized_topics & set(topics))
            if forbidden:
                raise ConsumerError(f"not allowed to read topic {', '.join(forbidden)}")
            missing = [t for t in topics if not client.cluster.partitions_for_topic(t)]
            if not missing:
                return
            await anyio.sleep(_RETRY_AFTER)
            await client.force_metadata_update()
    known: Iterable[str] = ()
    with anyio.move_on_after(_TOPIC_TIMEOUT), suppress(KafkaError):
        known = (await client.fetch_all_metadata()).topics()
    raise no_such_topic(missing, known, config)


def no_such_topic(
    missing: Iterable[str], known: Iterable[str], config: ConnectionConfig
) -> ConsumerError:
    """Make the error for topics that do not exist; it names those of similar names in `known`."""
    missing, known = list(missing), sorted(known)
    near = [name for topic in missing for name in get_close_matches(topic, known, cutoff=_SIMILAR)]
    hint = f"; there is {' and '.join(dict.fromkeys(near))}" if near else "; create it first"
    return ConsumerError(
        f"topic {', '.join(missing)} does not exist at {config.bootstrap_servers}{hint}"
    )


def _never_create_topics(client: Any) -> None:
    """Make the client's metadata requests forbid the broker to create the topics that they name.

    aiokafka's request has the argument, but its client does not pass it: the method is given a request class
    that does.
    """
    update = AIOKafkaClient._metadata_update
    request = partial(MetadataRequest, allow_auto_topic_creation=False)
    function = FunctionType(update.__code__, {**update.__globals__, "MetadataRequest": request})
    client._metadata_update = MethodType(function, client)


async def disconnect(consumer: Any, timeout: float) -> None:
    """Leave the group and close the connections, within `timeout` seconds or the caller's deadline."""
    timeout = min(timeout, anyio.current_effective_deadline() - anyio.current_time())
    with shield(timeout * _STOP_SHARE) as patience:
        await consumer.stop()
    if not patience.cancelled_caught:
        return
    # aiokafka finishes a rebalance before it leaves. That may take as long as the slowest member, and
    # it blocks the coordinator's connection, so leave through another one. (The rebalance itself was
    # cancelled with `stop`, which awaited it.)
    coordinator, client = consumer._coordinator, consumer._client
    _log.warning("leaving the group in the middle of a rebalance", seconds=timeout * _STOP_SHARE)
    rest = timeout * (1 - _STOP_SHARE) / 2
    with shield(rest):
        await _leave(coordinator, client)
    with shield(rest):
        await consumer._fetcher.close()
        await client.close()


async def _leave(coordinator: Any, client: Any) -> None:
    for task in (coordinator._heartbeat_task, coordinator._commit_refresh_task):
        if task is not None:
            task.cancel()
    if not coordinator.member_id or coordinator._group_instance_id is not None:
        return  # not yet a member, or a static one that is expected back
    try:
        leave = LeaveGroupRequest(coordinator.group_id, coordinator.member_id)
        await client.send(coordinator.coordinator_id, leave)
    except KafkaError as error:
        _log.warning("leaving the group failed", reason=str(error))


async def stop_producer(producer: Any, patience: float) -> None:
    """Stop a producer, after `patience` seconds even if the brokers do not answer.

    An idempotent one would wait for them forever. The messages it then drops were never acknowledged.
    """
    with anyio.move_on_after(patience):
        await producer.flush()
        await producer.stop()
        return
    await drop_producer(producer)


async def drop_producer(producer: Any) -> None:
    """Close a producer's connections at once; what it has not sent stays unsent.

    No public method does. Its task is not awaited in a cancel scope: aiokafka suppresses cancellations, and a
    scope that has lost one lets the next escape.
    """
    producer._closed = True
    sending = producer._sender.sender_task
    if sending is not None:
        sending.cancel()
    await producer.client.close()
    if sending is not None:
        await asyncio.wait([sending], timeout=_DROP_TIMEOUT)
