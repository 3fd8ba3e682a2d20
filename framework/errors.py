"""Every error that a user can meet. Its message names the subject, the fact and the remedy."""

from __future__ import annotations

__all__ = [
    "BrokerUnavailable",
    "CommitFenced",
    "CommitRefused",
    "ConsumerError",
    "CorruptRecords",
    "DeadlineExceeded",
    "KmrError",
    "OffsetOutOfRange",
    "RecordFailed",
    "SettingsError",
    "SinkError",
    "StrategyError",
    "UnexpectedDuplicate",
    "reason_of",
]


class KmrError(Exception):
    """Base of all errors that are shown to the user as one message, without a traceback."""


class SettingsError(KmrError):
    """A setting is wrong. The message names the setting, its source, and the allowed values."""


class StrategyError(KmrError):
    """The strategy is wrong, or does not fit its sink."""


class ConsumerError(KmrError):
    """The Kafka client cannot continue."""


class BrokerUnavailable(ConsumerError):
    """No broker answered at the given address."""


class CommitFenced(ConsumerError):
    """The group has a new generation, so it refuses this member's commits."""


class CommitRefused(ConsumerError):
    """The broker refuses a commit.

    Attributes:
        acknowledged: the partitions of the same commit that it acknowledged.
        for_good: whether it would refuse it again, such as after a permission was revoked.
    """

    def __init__(
        self,
        message: str,
        acknowledged: frozenset[tuple[str, int]] = frozenset(),
        *,
        for_good: bool = True,
    ) -> None:
        super().__init__(message)
        self.acknowledged = acknowledged
        self.for_good = for_good


class OffsetOutOfRange(ConsumerError):
    """The next offset of a partition does not exist on the broker.

    Attributes:
        partition: topic and number; None where they are not known.
    """

    def __init__(self, message: str, partition: tuple[str, int] | None = None) -> None:
        super().__init__(message)
        self.partition = partition


class CorruptRecords(ConsumerError):
    """A record batch is damaged. The message names the partition and the offset."""


class SinkError(KmrError):
    """A sink refused rows, and a retry cannot succeed."""


class UnexpectedDuplicate(SinkError):
    """A sink dropped rows as a repetition, though their range was announced for the first time."""


class RecordFailed(KmrError):
    """A record failed and the strategy has no error sink, or too many records failed."""


class DeadlineExceeded(KmrError):
    """The shutdown took longer than its deadline. The message names the offsets in flight."""


def reason_of(error: BaseException) -> str:
    """Describe an exception in one line, for logs and the error sink."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
