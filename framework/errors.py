"""Every error that a user can meet. Its message names the subject, the fact and the remedy.

Few imports: the command line imports this before it can hold a signal.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

__all__ = [
    "BrokerUnavailable",
    "CommitFenced",
    "CommitRefused",
    "ConsumerError",
    "CorruptRecords",
    "DeadlineExceeded",
    "Escaped",
    "KmrError",
    "MissingExtra",
    "OffsetOutOfRange",
    "RecordFailed",
    "RegistryError",
    "SettingsError",
    "SinkError",
    "StateTooLarge",
    "StrategyError",
    "UnexpectedDuplicate",
    "is_of_code",
    "reason_of",
    "storable",
    "traceback_of",
    "type_of",
]


MANY: Final = 100
"""So many rows that are all refused for one reason are no bad rows: the set-up is wrong."""


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


class StateTooLarge(KmrError):
    """What a strategy remembers needs more memory than its budget has."""


class SinkUnavailable(SinkError):
    """A sink does not answer, or not now: the same may succeed later."""


class TableRefused(SinkError):
    """A server lacks the table or its database, or refuses what is in it: other tables may be right."""


class UnexpectedDuplicate(SinkError):
    """A sink dropped rows as a repetition, though their range was announced for the first time."""


class RecordFailed(KmrError):
    """A record failed and the strategy has no error sink, or too many records failed."""

    @classmethod
    def without_sink(cls, place: object, stage: str, reason: str) -> RecordFailed:
        """Return the error of records that no error sink takes; `place` names them."""
        return cls(
            f"record failed, {place} in {stage}: {reason}; set reduce_err= in the strategy to keep such "
            "records and go on"
        )


class Escaped(KmrError):
    """User code raised a BaseException that is no `Exception`: SystemExit, or a CancelledError of its own.

    Attributes:
        error: what it raised.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error

    def __str__(self) -> str:
        return (
            f"the strategy's code raised {reason_of(self.error)}; it ends no worker: raise an Exception, or "
            "send SIGTERM"
        )


def as_exception(error: BaseException) -> Exception:
    """Return what user code raised as an `Exception`.

    Raises:
        BaseException: `error`, if it is a cancellation of the running task, or closes a coroutine.
    """
    while isinstance(error, BaseExceptionGroup) and not isinstance(error, Exception):
        error = error.exceptions[0]
    if isinstance(error, Exception):
        return error
    if _closes_coroutine(error) or _is_cancellation(error):
        raise error
    return Escaped(error)


def _closes_coroutine(error: BaseException) -> bool:
    """Return whether a coroutine is closed, not run: no task of this thread runs, and a coroutine is left."""
    import asyncio
    import inspect
    from traceback import walk_tb

    if not isinstance(error, GeneratorExit):
        return False
    try:
        if asyncio.current_task() is not None:
            return False
    except RuntimeError:  # no event loop runs in this thread
        pass
    flags = (frame.f_code.co_flags for frame, _ in walk_tb(error.__traceback__))
    return any(each & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR) for each in flags)


def _is_cancellation(error: BaseException) -> bool:
    import asyncio

    if not isinstance(error, asyncio.CancelledError):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:  # in a thread, where nobody cancels
        return False
    return task is not None and task.cancelling() > 0


@contextmanager
def no_escape() -> Iterator[None]:
    """Raise what user code raises in the block as an `Exception`: else its task ends silently."""
    try:
        yield
    except BaseException as error:
        failure = as_exception(error)
        if failure is error:
            raise
        raise failure from error


class DeadlineExceeded(KmrError):
    """The shutdown took longer than its deadline. The message names the offsets in flight."""


class RegistryError(KmrError):
    """The registry does not answer, or refuses us. The message has its address and its answer."""


class MissingExtra(KmrError):
    """A feature needs a library that is not installed. The message has the command that installs it."""


_OF_CODE: Final = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError),
    *(NotImplementedError, RecursionError, SyntaxError, TypeError, ValueError),
)


def is_of_code(error: BaseException) -> bool:
    """Return whether an exception is a mistake of code or of data, which comes again if the same is tried.

    Others may be "later": of the network or the system (`OSError`), and all that a library defines itself.
    """
    return isinstance(error, _OF_CODE) and not isinstance(error, OSError)


_FRAMES: Final = 8
_CAUSES: Final = 3
_TRACEBACK_CHARACTERS: Final = 2000


def type_of(error: BaseException) -> str:
    """Return the class of an exception: `TimeoutError`, `json.decoder.JSONDecodeError`."""
    kind = type(error.error if isinstance(error, Escaped) else error)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return storable(f"{module}{kind.__qualname__}")


def traceback_of(error: BaseException) -> str:
    """Return where an exception was raised, and its causes before it: at most 2,000 characters.

    Each has its last 8 frames; those of this package, before the user's own, are left out. Much cheaper
    than `traceback.format_exception`: a batch may have a failure for each record.
    """
    parts: list[str] = []
    next_: BaseException | None = error.error if isinstance(error, Escaped) else error
    while next_ is not None and len(parts) < _CAUSES:
        parts.append(f"{_shown_frames(_frames_of(next_))}{reason_of(next_)}")
        implicit = None if next_.__suppress_context__ else next_.__context__
        next_ = next_.__cause__ or implicit
    return storable("\n\nthen:\n".join(reversed(parts)))[-_TRACEBACK_CHARACTERS:]


def place_of(error: BaseException) -> str:
    """Return the line that raised an exception: `/home/me/sink.py:12`."""
    from traceback import walk_tb

    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    file, line = frames[-1] if frames else ("?", 0)
    return f"{file}:{line}"


def _frames_of(error: BaseException) -> tuple[tuple[str, int, str], ...]:
    from traceback import walk_tb

    found: list[tuple[str, int, str]] = []
    for frame, line in walk_tb(error.__traceback__):
        if not found and frame.f_globals.get("__name__", "").startswith("kmr."):
            continue
        found.append((frame.f_code.co_filename, line, frame.f_code.co_qualname))
    return tuple(found[-_FRAMES:])


@lru_cache(maxsize=256)
def _shown_frames(frames: tuple[tuple[str, int, str], ...]) -> str:
    from traceback import format_list

    return "".join(format_list([(*frame, None) for frame in frames]))


def reason_of(error: BaseException) -> str:
    """Describe an exception in one line, for logs and the error sink."""
    if isinstance(error, Escaped):
        error = error.error
    name = type(error).__name__
    try:
        text = str(error)
    except BaseException as failure:  # noqa: BLE001  the user's class may do anything
        return f"{name} (its __str__ raises {type(failure).__name__})"
    return storable(f"{name}: {text}" if text else name)


def storable(text: str) -> str:
    """Return a text that has a UTF-8 form: lone surrogates are escaped."""
    return text if str.isascii(text) else str.encode(text, "utf-8", "backslashreplace").decode()


def did_you_mean(
    name: str,
    known: Collection[str],
    *,
    similar: float = 0.6,
    shown: Callable[[str], str] = str,
) -> str:
    """Return the end of a message about an unknown name: the nearest known one; empty if none is near.

    Args:
        similar: the least similarity, from 0 (any) to 1 (equal).
        shown: returns the form in which the message shows a known name.
    """
    import difflib

    near = difflib.get_close_matches(name, list(known), 1, similar)
    return f"; did you mean {shown(near[0])}?" if near else ""


def require_columns(subject: str, wanted: Iterable[str], columns: Collection[str]) -> None:
    """Raise StrategyError if a wanted column is not among `columns`. The message names the nearest one."""
    for name in wanted:
        if name not in columns:
            near = did_you_mean(name, columns)
            raise StrategyError(
                f"{subject}: the rows have no column {name!r}, only {list(columns)}{near}"
            )
