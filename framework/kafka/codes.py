"""The protocol's error codes in responses, as the exceptions of aiokafka."""

from __future__ import annotations

import aiokafka.errors

__all__ = ["check_code"]

_UNSTABLE_OFFSET_COMMIT = 88


class UnstableOffsetCommit(aiokafka.errors.BrokerResponseError):  # type: ignore[misc]
    """A transaction is open that commits an offset; aiokafka does not know this error."""

    errno = _UNSTABLE_OFFSET_COMMIT
    message = "UNSTABLE_OFFSET_COMMIT"
    retriable = True


def check_code(code: int, what: object) -> None:
    """Raises KafkaError, which names what it is about, unless the code is 0."""
    if code == _UNSTABLE_OFFSET_COMMIT:
        raise UnstableOffsetCommit(str(what))
    if code != 0:
        raise aiokafka.errors.for_code(code)(str(what))
