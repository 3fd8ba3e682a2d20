"""The message formats 0 and 1, which brokers before 0.11 wrote, through aiokafka's own parser.

Nobody writes them any more, but they may still lie in old logs: correct, not fast.
"""

from __future__ import annotations

from aiokafka.record.memory_records import MemoryRecords

from framework.decode.columns import Row

__all__ = ["read_legacy"]

_NO_TIMESTAMP = -1  # format 0 has none


def read_legacy(data: bytes, *, check_crcs: bool) -> list[Row]:
    """The records of consecutive message sets, all of format 0 or 1.

    Raises `ValueError`, which says why, for anything that cannot be read.
    """
    try:
        return _read(data, check_crcs=check_crcs)
    except Exception as error:  # the parser promises nothing for damaged bytes
        raise ValueError(f"its old format (0 or 1) cannot be read: {error!r}") from error


def _read(data: bytes, *, check_crcs: bool) -> list[Row]:
    rows = []
    sets = MemoryRecords(data)
    while sets.has_next():
        messages = sets.next_batch()
        if check_crcs and not messages.validate_crc():
            raise ValueError("its checksum is wrong")
        rows += [
            Row(
                message.offset,
                _NO_TIMESTAMP if message.timestamp is None else message.timestamp,
                _NO_TIMESTAMP if message.timestamp_type is None else message.timestamp_type,
                message.key,
                message.value,
            )
            for message in messages
        ]
    return rows
