"""How to reach the brokers: addresses, security, limits. Plain values, checked when they are made."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ssl import SSLContext, SSLError
from typing import Any, Literal

from aiokafka.helpers import create_ssl_context

from framework.errors import SettingsError

__all__ = ["ConnectionConfig", "ConsumerConfig", "IsolationLevel", "OffsetReset"]

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
OffsetReset = Literal["earliest", "latest", "error"]
IsolationLevel = Literal["read_committed", "read_uncommitted"]


@dataclass(frozen=True, kw_only=True)
class ConnectionConfig:
    """Where the brokers are and how to be let in.

    Attributes:
        bootstrap_servers: `host:port,host:port`; one that answers is enough to find the others.
        client_id: the name that the broker sees in its logs and quotas.
        request_timeout: seconds until a request that got no answer has failed.
        metadata_max_age: seconds after which topics and leaders are asked for again; new partitions,
            and new topics of a pattern, are seen at the latest then.
        security_protocol: plain or TLS, with or without SASL.
        sasl_mechanism: how user name and password are proved.
        ssl_cafile: certificates that we trust (PEM); the system's own when it is not given.
        ssl_certfile: our certificate (PEM), where the broker asks for one.
        ssl_keyfile: its private key (PEM).
        ssl_check_hostname: whether the broker's certificate must carry the name that we connect to.
    """

    bootstrap_servers: str = "localhost:9092"
    client_id: str = "kmr"
    request_timeout: float = 40.0
    metadata_max_age: float = 60.0
    security_protocol: SecurityProtocol = "PLAINTEXT"
    sasl_mechanism: SaslMechanism = "PLAIN"
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_key_password: str | None = field(default=None, repr=False)
    ssl_check_hostname: bool = True

    def __post_init__(self) -> None:
        """Raises `SettingsError` for values that cannot work together."""
        if not self.bootstrap_servers.strip(", "):
            raise SettingsError("bootstrap_servers is empty: give host:port of at least one broker")
        if self.security_protocol.startswith("SASL") and not (
            self.sasl_username and self.sasl_password
        ):
            raise SettingsError(
                f"security_protocol {self.security_protocol} needs sasl_username and sasl_password"
            )

    def client_options(self) -> dict[str, Any]:
        """The same as keyword arguments of aiokafka's clients.

        Raises `SettingsError` when a certificate or key cannot be read.
        """
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "client_id": self.client_id,
            "request_timeout_ms": round(self.request_timeout * 1000),
            "metadata_max_age_ms": round(self.metadata_max_age * 1000),
            "security_protocol": self.security_protocol,
            "sasl_mechanism": self.sasl_mechanism,
            "sasl_plain_username": self.sasl_username,
            "sasl_plain_password": self.sasl_password,
            "ssl_context": self._ssl_context() if "SSL" in self.security_protocol else None,
        }

    def _ssl_context(self) -> SSLContext:
        try:
            context: SSLContext = create_ssl_context(
                cafile=self.ssl_cafile,
                certfile=self.ssl_certfile,
                keyfile=self.ssl_keyfile,
                password=self.ssl_key_password,
            )
        except (OSError, SSLError) as error:
            files = [f for f in (self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile) if f]
            raise SettingsError(f"cannot load TLS files {', '.join(files)}: {error}") from error
        context.check_hostname = self.ssl_check_hostname
        return context


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ConnectionConfig):
    """What to read, as a member of which group, and in what pieces.

    Attributes:
        group: the consumer group.
        topics: the topics to read; or else
        topic_pattern: a regular expression that whole topic names must match.
        group_instance_id: a name that survives restarts (static membership, KIP-345): the broker keeps
            the partitions for this member until `session_timeout` has passed, and stopping does not
            leave the group.
        auto_offset_reset: where to begin when the group has committed no offset: the first record, only
            new ones, or an `OffsetOutOfRange` error.
        on_out_of_range: where to go on when the next offset is not on the broker any more (retention was
            faster). Both ways skip records, which an ERROR log tells.
        isolation_level: whether records of open or aborted transactions are left out (KIP-98).
        max_partition_fetch_bytes: bytes that one fetch response brings of one partition; a larger
            record batch still comes whole.
        fetch_max_bytes: bytes of one fetch response. A consumer holds at most two responses per broker
            besides what `poll` has handed out: one that arrives, and what paused partitions keep.
        fetch_max_wait: seconds that the broker waits for `fetch_min_bytes` to come together.
        session_timeout: seconds without a heartbeat until the broker gives our partitions to others;
            brokers accept 6 s to 30 min.
        heartbeat_interval: seconds between heartbeats; also how soon we hear of a rebalance.
        rebalance_timeout: seconds that the broker waits for us to come back in a rebalance: the time
            that `Listener.revoked` has. After it we are no member any more and commits are fenced.
            A consumer's `request_timeout` is at least 5 seconds more.
        commit_timeout: seconds that a commit is retried while the coordinator is not reachable.
        stop_timeout: seconds that `Consumer.stop` waits for the broker to take note.
    """

    group: str
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    group_instance_id: str | None = None
    auto_offset_reset: OffsetReset = "earliest"
    on_out_of_range: OffsetReset = "error"
    isolation_level: IsolationLevel = "read_committed"
    max_partition_fetch_bytes: int = 1024 * 1024
    fetch_max_bytes: int = 16 * 1024 * 1024
    fetch_min_bytes: int = 1
    fetch_max_wait: float = 0.5
    session_timeout: float = 30.0
    heartbeat_interval: float = 3.0
    rebalance_timeout: float = 60.0
    commit_timeout: float = 15.0
    stop_timeout: float = 5.0

    def __post_init__(self) -> None:
        """Raises `SettingsError` for values that cannot work together."""
        super().__post_init__()
        if not self.group:
            raise SettingsError("group is empty: a consumer needs the name of its group")
        if bool(self.topics) == (self.topic_pattern is not None):
            raise SettingsError("give either topics or topic_pattern")
        if self.topic_pattern is not None:
            try:
                re.compile(self.topic_pattern)
            except re.error as error:
                raise SettingsError(
                    f"topic_pattern {self.topic_pattern!r} is no regular expression: {error}"
                ) from error
        if self.heartbeat_interval >= self.session_timeout:
            raise SettingsError(
                f"heartbeat_interval ({self.heartbeat_interval} s) must be shorter than session_timeout"
                f" ({self.session_timeout} s); a third of it is usual"
            )
