"""What a topic takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["message_limit"]

_SETTING = "max.message.bytes"
_TIMEOUT = 5.0


async def message_limit(client: Mapping[str, Any], topic: str) -> int | None:
    """The most bytes of one record batch in `topic`; None when the brokers do not tell.

    Not every user may ask, and a topic that is about to be created has no settings yet.

    Args:
        client: keyword arguments of aiokafka's clients.
    """
    admin = AIOKafkaAdminClient(**client)
    try:
        with anyio.move_on_after(_TIMEOUT):
            await admin.start()
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, {_SETTING: None})
            (response,) = await admin.describe_configs([resource])
            for _, _, _, _, entries in response.resources:
                for name, value, *_ in entries:
                    if name == _SETTING and value is not None:
                        return int(value)
    except KafkaError:
        return None
    finally:
        await admin.close()
    return None
