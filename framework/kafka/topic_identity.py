"""Whether a topic is still the one that it was: brokers give each topic an id, since Kafka 2.8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import anyio
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError

from ..errors import ConsumerError

if TYPE_CHECKING:
    from uuid import UUID

_INTERVAL: Final = 2.0  # seconds


class TopicIdentity:
    """Notices that a topic was deleted, or made anew with as many records, which no offset tells.

    Args:
        client: of aiokafka, connected.
        topic: its name.
    """

    def __init__(self, client: Any, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._id: UUID | None = None
        self._next = 0.0

    async def check(self) -> None:
        """Ask a broker, at most every two seconds. The first answer says which topic is meant.

        Nothing is noticed where no broker answers, or where brokers have no ids.

        Raises:
            ConsumerError: the topic is another one, or there is none.
        """
        now = anyio.current_time()
        node = self._client.get_random_node()
        if now < self._next or node is None:
            return
        self._next = now + _INTERVAL
        try:
            found, error = await self._ask(node)
        except (KafkaError, NotImplementedError):  # who fetches sees the first; the second: no ids
            return
        if error == UnknownTopicOrPartitionError.errno and self._id is not None:
            raise ConsumerError(
                f"topic {self._topic} was deleted; what was read of it is kept until it is there again"
            )
        if error:
            return
        if self._id is not None and found != self._id:
            raise ConsumerError(f"topic {self._topic} was deleted and made anew")
        self._id = found

    async def _ask(self, node: int) -> tuple[UUID | None, int]:
        """Return the topic's id and Kafka's error code."""
        from kio.schema.metadata.v11.request import MetadataRequest, MetadataRequestTopic
        from kio.schema.types import TopicName

        from ..kio_requests import KioRequest

        question = MetadataRequest(
            topics=(MetadataRequestTopic(topic_id=None, name=TopicName(self._topic)),),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        answer = await self._client.send(node, KioRequest(question))
        return answer.topics[0].topic_id, int(answer.topics[0].error_code)
