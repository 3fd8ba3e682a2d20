"""`kmr broker doctor`: check a data directory for damage, or show the batches of one file."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  cyclopts reads the annotations at run time

from ..log.checkup import LOST_SUFFIX
from ..log.segment import LOG_SUFFIX
from ..operations.doctor import DirectoryCheckup, examine
from .batches import show_batches
from .terminal import CLEAN, FAILED, AsJson, CommandError, Flag, reports, show


@reports
def doctor(path: Path, /, *, records: Flag = False, as_json: AsJson = False) -> int:
    """Check the data directory of a broker that is not running, or show a segment; write nothing.

    Of a directory it reads every batch of every log, and checks CRCs, offsets, indexes, checkpoints,
    committed offsets, transactions and topic descriptions. "damage" means that data is lost or unreadable
    and needs an operator; the next start of the broker repairs a "note" automatically.

    Of a segment (00000000000000000000.log in a partition's directory, or one set aside as .lost) it shows
    the batches, one line each. PRODUCER is id/epoch:sequences of an idempotent producer. CRC is ok, or bad
    for a batch whose bytes have changed. Ranges of offsets and sequences include the last one. With --json,
    each line is one JSON object for one batch.

    Exit codes: 0 no damage, 1 damage or an unreadable directory, 2 wrong usage.

    Parameters
    ----------
    path
        The directory of `kmr broker serve --data`, or a segment of a log.
    records
        Show the records of a segment as well.
    """
    if path.suffix in (LOG_SUFFIX, LOST_SUFFIX):
        return show_batches(path, records=records, as_json=as_json)
    try:
        examination = examine(path)
    except OSError as error:
        raise CommandError(f"{path}: cannot be read ({error})") from error
    findings = [f"{kind}: {where}: {what}" for kind, where, what in examination.findings]
    show(_as_json(examination), [*findings, _summary(examination)], as_json=as_json)
    return FAILED if examination.is_damaged else CLEAN


def _summary(examination: DirectoryCheckup) -> str:
    damaged = sum(finding.kind == "damage" for finding in examination.findings)
    return (
        f"{examination.topics} topics, {examination.partitions} partitions,"
        f" {examination.segments} segments, {examination.batches} batches,"
        f" {examination.size_bytes} bytes: {f'{damaged} damaged' if damaged else 'no damage'}"
    )


def _as_json(examination: DirectoryCheckup) -> dict[str, object]:
    return {
        "damaged": examination.is_damaged,
        "clean": examination.clean,
        "topics": examination.topics,
        "partitions": examination.partitions,
        "segments": examination.segments,
        "batches": examination.batches,
        "bytes": examination.size_bytes,
        "findings": [
            {"kind": kind, "where": str(where), "what": what}
            for kind, where, what in examination.findings
        ],
    }
