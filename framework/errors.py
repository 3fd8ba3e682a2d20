"""Every error that a user of the framework can meet; each message says what, where and what to do."""

from __future__ import annotations

__all__ = [
    "BrokerUnavailable",
    "CommitFenced",
    "ConsumerError",
    "CorruptRecords",
    "DeadlineExceeded",
    "KmrError",
    "OffsetOutOfRange",
    "RecordFailed",
    "SettingsError",
    "SinkError",
    "StrategyError",
]


class KmrError(Exception):
    """Base of all errors that are shown to the user as one message, without a traceback."""


class SettingsError(KmrError):
    """The configuration is wrong: names the setting, where it came from, and what is allowed."""


class StrategyError(KmrError):
    """The strategy cannot work as it is written, or does not fit its sink."""


class ConsumerError(KmrError):
    """The Kafka client cannot go on."""


class BrokerUnavailable(ConsumerError):
    """No broker answered at the given address."""


class CommitFenced(ConsumerError):
    """The group has moved on to a new generation; this member's commits no longer count."""


class OffsetOutOfRange(ConsumerError):
    """The next offset of a partition does not exist on the broker.

    Attributes:
        partition: topic and number, where it is known.
    """

    def __init__(self, message: str, partition: tuple[str, int] | None = None) -> None:
        super().__init__(message)
        self.partition = partition


class CorruptRecords(ConsumerError):
    """A record batch is damaged: names the partition and the offset."""


class SinkError(KmrError):
    """A sink refused rows for a reason that a retry cannot mend."""


class RecordFailed(KmrError):
    """A record failed and there is no error sink for it, or too many did."""


class DeadlineExceeded(KmrError):
    """The shutdown took longer than its deadline: names what was not drained."""
