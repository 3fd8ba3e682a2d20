"""Connecting a consumer, and disconnecting it within a time; with reasons a person can act on."""
# ruff: noqa: SLF001  aiokafka's internals; framework.kafka.contract checks them

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import anyio
import structlog
from aiokafka.client import collect_hosts
from aiokafka.conn import create_conn
from aiokafka.errors import AuthenticationFailedError, KafkaError, SaslAuthenticationFailed
from aiokafka.protocol.group import LeaveGroupRequest

from framework.errors import BrokerUnavailable, ConsumerError

if TYPE_CHECKING:
    from framework.kafka.connection import ConnectionConfig

__all__ = ["connect", "disconnect", "require_topics"]

_log = structlog.get_logger(__name__)

_PROBE_TIMEOUT = 5.0  # seconds, for each address
_TOPIC_TIMEOUT = 5.0  # seconds that a broker may take to create a topic that we ask for
_RETRY_AFTER = 0.1
_LEAVE_TIMEOUT = 1.0


async def connect(consumer: Any, config: ConnectionConfig) -> None:
    """Start an `AIOKafkaConsumer` that has no subscription yet; closes it if that fails.

    Raises:
        BrokerUnavailable: no address answers as a Kafka broker; says why, for each.
        ConsumerError: a broker refuses our credentials.
    """
    try:
        await consumer.start()
    except KafkaError as error:
        await consumer.stop()
        raise await _why(config) from error
    except BaseException:
        with anyio.CancelScope(shield=True):
            await consumer.stop()
        raise


async def _why(config: ConnectionConfig) -> ConsumerError:
    """aiokafka only logs why an address did not answer: so ask each once more."""
    options = config.client_options()
    servers = options.pop("bootstrap_servers")
    options.pop("metadata_max_age_ms")
    options["request_timeout_ms"] = round(_PROBE_TIMEOUT * 1000)
    reasons = []
    for host, port, _ in collect_hosts(servers):
        try:
            with anyio.fail_after(_PROBE_TIMEOUT):
                connection = await create_conn(host, port, **options)
            connection.close()
        except (AuthenticationFailedError, SaslAuthenticationFailed) as error:
            return ConsumerError(
                f"{host}:{port} refuses {config.sasl_mechanism} credentials of"
                f" {config.sasl_username!r}: {error}"
            )
        except TimeoutError:
            reasons.append(f"{host}:{port}: no answer in {_PROBE_TIMEOUT:g} s")
        except OSError as error:  # asyncio's own text does not say what went wrong
            number = error.errno or 0
            reasons.append(f"{host}:{port}: {os.strerror(number) if number > 0 else error}")
        except KafkaError as error:
            reasons.append(f"{host}:{port}: {error}")
        else:
            reasons.append(f"{host}:{port}: it answers now; try again")
    return BrokerUnavailable(f"no Kafka broker answers at bootstrap_servers ({'; '.join(reasons)})")


async def require_topics(client: Any, config: ConnectionConfig, topics: tuple[str, ...]) -> None:
    """Wait until the topics exist: a broker with automatic creation makes them because we ask.

    Raises `ConsumerError` for topics that do not exist, or that we may not see.
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
    raise ConsumerError(
        f"topic {', '.join(missing)} does not exist at {config.bootstrap_servers}, and the broker"
        " does not create it by itself: create it first"
    )


async def disconnect(consumer: Any, timeout: float) -> None:
    """Leave the group and close the connections, in about `timeout` seconds whatever happens."""
    with anyio.move_on_after(timeout, shield=True) as patience:
        await consumer.stop()
    if not patience.cancelled_caught:
        return
    # aiokafka finishes a rebalance before it leaves. That may take as long as the slowest member, and
    # the coordinator's connection waits with it, so tell the broker by another one. (The rebalance
    # itself was cancelled with `stop`, which awaited it.)
    coordinator, client = consumer._coordinator, consumer._client
    _log.warning("leaving the group in the middle of a rebalance", seconds=timeout)
    with anyio.move_on_after(_LEAVE_TIMEOUT, shield=True):
        await _leave(coordinator, client)
    with anyio.move_on_after(_LEAVE_TIMEOUT, shield=True):
        await consumer._fetcher.close()
        await client.close()


async def _leave(coordinator: Any, client: Any) -> None:
    for task in (coordinator._heartbeat_task, coordinator._commit_refresh_task):
        if task is not None:
            task.cancel()
    if not coordinator.member_id or coordinator._group_instance_id is not None:
        return  # not yet a member, or one that is expected back
    try:
        leave = LeaveGroupRequest(coordinator.group_id, coordinator.member_id)
        await client.send(coordinator.coordinator_id, leave)
    except KafkaError as error:
        _log.warning("could not tell the broker that we leave", reason=str(error))
