"""`kmr broker doctor`: check a data directory for damage."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  cyclopts reads the annotations at run time

from ..operations.doctor import Examination, examine
from .terminal import CLEAN, FAILED, AsJson, CommandError, reports, show

__all__ = ["doctor"]


@reports
def doctor(
    data_dir: Path,
    /,
    *,
    as_json: AsJson = False,
) -> int:
    """Check the data directory of a broker that is not running; write nothing.

    Reads every batch of every log and checks CRCs, offsets, indexes, checkpoints, committed offsets,
    transactions and topic descriptions. "damage" means that data is lost or unreadable and needs an
    operator; the next start of the broker repairs a "note" automatically.

    Exit codes: 0 no damage, 1 damage or an unreadable directory, 2 wrong usage.

    Parameters
    ----------
    data_dir
        The directory of `kmr broker serve --data`.
    """
    try:
        examination = examine(data_dir)
    except OSError as error:
        raise CommandError(f"{data_dir}: cannot be read ({error})") from error
    findings = [f"{kind}: {where}: {what}" for kind, where, what in examination.findings]
    show(_as_json(examination), [*findings, _summary(examination)], as_json=as_json)
    return FAILED if examination.is_damaged else CLEAN


def _summary(examination: Examination) -> str:
    damaged = sum(finding.kind == "damage" for finding in examination.findings)
    return (
        f"{examination.topics} topics, {examination.partitions} partitions,"
        f" {examination.segments} segments, {examination.batches} batches,"
        f" {examination.size_bytes} bytes: {f'{damaged} damaged' if damaged else 'no damage'}"
    )


def _as_json(examination: Examination) -> dict[str, object]:
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
