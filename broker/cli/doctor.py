"""`kmr broker doctor`: is everything there that the broker was given?"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  cyclopts reads the annotations at run time
from typing import Annotated

from cyclopts import Parameter

from broker.cli.errors import CommandError, reports
from broker.cli.text import say, say_json
from broker.doctor import Examination, examine

__all__ = ["doctor"]

_DAMAGED = 1


@reports
def doctor(
    data_dir: Path,
    /,
    *,
    as_json: Annotated[bool, Parameter("--json", negative=(), show_default=False)] = False,
) -> int:
    """Verify the data directory of a broker that does not run; nothing is written.

    Reads every batch of every log and checks its CRC and its offsets, the indexes, the checkpoints, the
    committed offsets, the transactions and the descriptions of the topics. "damage" is lost, or will be
    missed, and needs a person; a "note" is what the next start of the broker puts right by itself.

    Exit codes: 0 no damage, 1 damage or an unreadable directory, 2 wrong usage.

    Parameters
    ----------
    data_dir
        The directory that `kmr broker serve --data` was given.
    as_json
        Print JSON.
    """
    try:
        examination = examine(data_dir)
    except OSError as error:
        raise CommandError(f"{data_dir} cannot be read: {error}") from error
    if as_json:
        say_json(_as_json(examination))
    else:
        say(*(f"{kind}: {where}: {what}" for kind, where, what in examination.findings))
        say(_summary(examination))
    return _DAMAGED if examination.is_damaged else 0


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
