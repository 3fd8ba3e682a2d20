"""Shows the batches in a segment of a log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from ..log.checkup import FoundBatch, found_batches
from ..log.producers import read_marker
from ..log.records import CODECS, BatchError, read_records
from ..log.results import LogCorrupt
from .terminal import CLEAN, FAILED, CommandError, complain, say, text_or_base64

if TYPE_CHECKING:
    from pathlib import Path

    from ..log.records import BatchHeader, StoredRecord

_CODEC_NAMES = {number: name for name, number in CODECS.items()}
_HEADER = (
    f"{'OFFSETS':>21} {'BYTE':>10} {'SIZE':>8} {'RECORDS':>7} {'CODEC':6} {'LATEST TIMESTAMP':24}"
    f" {'PRODUCER':>20}  CRC"
)


def show_batches(file: Path, *, records: bool, as_json: bool) -> int:
    """Print the batches of a segment, a line each, and their records; return the exit code.

    Raises:
        CommandError: the file cannot be read, or not to its end.
    """
    bad = 0
    try:
        for batch in found_batches(file):
            bad += bool(batch.problem)
            if as_json:
                say(msgspec.json.encode(_as_json(batch, with_records=records)).decode())
            else:
                header = () if batch.position else (_HEADER,)
                say(*header, _line(batch), *(_record_lines(batch) if records else ()))
    except OSError as error:
        raise CommandError(f"{file}: cannot be read ({error.strerror or error})") from error
    except LogCorrupt as error:
        raise CommandError(f"{error}; the rest of the file is not shown") from error
    if bad:
        complain(f"{file}: {bad} damaged batches")
    return FAILED if bad else CLEAN


def _line(batch: FoundBatch) -> str:
    header = batch.header
    offsets = f"{header.base_offset}-{header.last_offset}"
    return (
        f"{offsets:>21} {batch.position:>10} {header.size:>8} {header.record_count:>7}"
        f" {_codec(header):6} {_time(header.max_timestamp):24} {_producer(header):>20}"
        f"  {'bad' if batch.problem else 'ok'}{_kind(batch)}"
    )


def _record_lines(batch: FoundBatch) -> list[str]:
    found = _records(batch)
    if isinstance(found, str):
        return [f"    ! {found}"]
    return [
        f"    {record.offset} {_time(record.timestamp)} {_shown(record.key)}: {_shown(record.value)}"
        + "".join(f" [{name}={_shown(value)}]" for name, value in record.headers)
        for record in found
    ]


def _as_json(batch: FoundBatch, *, with_records: bool) -> dict[str, object]:
    header = batch.header
    shown: dict[str, object] = {
        **msgspec.structs.asdict(header),
        "last_offset": header.last_offset,
        "position": batch.position,
        "size": header.size,
        "codec": _codec(header),
        "transactional": header.is_transactional,
        "control": header.is_control,
        "problem": batch.problem,
    }
    if with_records:
        found = _records(batch)
        if isinstance(found, str):
            shown["problem"] = found
        else:
            shown["records"] = [_record_as_json(record) for record in found]
    return shown


def _record_as_json(record: StoredRecord) -> dict[str, Any]:
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        **text_or_base64("key", record.key),
        **text_or_base64("value", record.value),
        "headers": [
            {"name": name, **text_or_base64("value", value)} for name, value in record.headers
        ],
    }


def _records(batch: FoundBatch) -> list[StoredRecord] | str:
    """Return the records of a batch, or the reason why they cannot be read."""
    if batch.problem:
        return batch.problem
    try:
        return read_records(batch.data, batch.header)
    except BatchError as error:
        return str(error)


def _codec(header: BatchHeader) -> str:
    return _CODEC_NAMES.get(header.compression, f"?{header.compression}")


def _kind(batch: FoundBatch) -> str:
    """Return what distinguishes a batch from an ordinary one."""
    header = batch.header
    if header.is_control and not batch.problem:
        try:
            return (
                "  commit marker" if read_marker(batch.data, header).committed else "  abort marker"
            )
        except BatchError as error:
            return f"  {error}"
    if header.is_transactional:
        return "  transactional"
    return "" if header.record_count else "  compacted away"


def _producer(header: BatchHeader) -> str:
    if header.producer_id < 0:
        return "-"
    sequences = ""
    if header.base_sequence >= 0:
        sequences = f":{header.base_sequence}-{header.base_sequence + header.last_offset_delta}"
    return f"{header.producer_id}/{header.producer_epoch}{sequences}"


def _time(milliseconds: int) -> str:
    if milliseconds < 0:
        return "-"
    try:
        time = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shown(data: bytes | None) -> str:
    """Return quoted text; bytes that are not UTF-8 with escapes."""
    if data is None:
        return "null"
    try:
        return repr(data.decode())
    except UnicodeDecodeError:
        return repr(data)
