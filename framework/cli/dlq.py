"""`kmr dlq`: list, show, replay and drop the dead letters of a topic."""

import re
import time
import uuid
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final, Literal

import anyio
import msgspec
import numpy as np
import pyarrow as pa
from cyclopts import App, Parameter
from msgspec.structs import replace as changed
from numpy.typing import NDArray

from ..columns.texts import TextStyle, text_of
from ..config.flags import Given, settings_flags
from ..config.schema import show_count
from ..dead_letters.letters import HEADERS, TIMESTAMP
from ..dead_letters.passes import Filter, Pass, group_of
from ..dead_letters.replay import replay_of
from ..dead_letters.summaries import By, LetterGroup, summaries
from ..dead_letters.topic_letters import (
    TopicLetters,
    find_letters,
    read_letters,
    read_values,
    unfinished_pass,
    write_pass,
)
from ..errors import ConsumerError, KmrError, SettingsError
from ..kafka.connection import ConnectionConfig, connection_config
from ..loading import load_strategy
from ..mapping.functions import map_batch
from ..observe.logs import setup_logs
from ..record import TopicPartition
from ..settings import CLUSTER, WORKER, ClusterSettings, LogSettings, Settings
from ..sinks.kafka.letter_writer import RecordWriter
from ..strategy import Strategy
from .offsets import milliseconds
from .output import plain_console, print_json, visible

app = App(name="dlq", help="List, show, replay and drop the dead letters of a topic.")

_PLACE: Final = re.compile(r"(?:(?P<topic>[^:]+):)?(?P<partition>\d+):(?P<offset>\d+)", re.ASCII)
_MOST_ROWS: Final = 50
_SHOWN_BYTES: Final = 4_000
_SPACED: Final = TextStyle(" ")


@Parameter(name="*", negative=())
@dataclass(frozen=True, kw_only=True)
class LetterFilter:
    """Chooses letters: a letter must meet each condition that is given.

    Parameters
    ----------
    reason
        Text that the reason contains.
    stage
        Stage that failed, such as map or reduce-1.
    from_topic
        Topic of the record.
    partition
        Partition of the record.
    offsets
        Offsets of the record, FIRST..LAST, both inclusive.
    since
        Letters written at this time or later: ISO 8601 (UTC without a zone), or milliseconds since 1970.
    until
        Letters written before this time.
    """

    reason: str | None = None
    stage: str | None = None
    from_topic: str | None = None
    partition: int | None = None
    offsets: str | None = None
    since: str | None = None
    until: str | None = None

    def filter(self) -> Filter:
        """Return the conditions. Raises SettingsError for times and offsets that cannot be read."""
        first = last = None
        if self.offsets is not None:
            low, _, high = self.offsets.partition("..")
            if not low.isdecimal() or not (high or low).isdecimal():
                raise SettingsError(
                    f"--offsets must be an offset or FIRST..LAST, such as 100..199, not {self.offsets!r}"
                )
            first, last = int(low), int(high or low)
        return Filter(
            reason=self.reason,
            stage=self.stage,
            topic=self.from_topic,
            partition=self.partition,
            first=first,
            last=last,
            since=None if self.since is None else milliseconds(self.since, "--since"),
            until=None if self.until is None else milliseconds(self.until, "--until"),
        )


@app.command(name="list")
@settings_flags(CLUSTER)
def list_letters(
    topic: str,
    /,
    *,
    given: Given[ClusterSettings],
    which: LetterFilter | None = None,
    every: Annotated[
        bool, Parameter("--all", negative=(), help="Settled letters too: replayed or dropped ones.")
    ] = False,
    by: Annotated[tuple[By, ...], Parameter(negative=())] = ("stage", "reason"),
    as_json: Annotated[bool, Parameter("--json", negative=(), help="Print JSON.")] = False,
) -> None:
    """Count the open letters of a topic by stage and reason, or by other headers.

    Reasons that differ only in numbers and quoted text count as one; the oldest letter's reason and its place
    stand for them.

    Parameters
    ----------
    topic
        The topic of a DeadLetterWriter.
    by
        Headers to count by; may be repeated.
    """
    known = anyio.run(read_letters, _connection(given.load()), topic)
    mask = (which or LetterFilter()).filter().matches(known.letters)
    mask &= True if every else known.open
    groups, number = summaries(known.letters, mask, by), int(known.open.sum())
    if as_json:
        reasons = [each.as_json() for each in groups]
        print_json({"topic": topic, "open": number, "reasons": reasons, "passes": known.passes})
        return
    console = plain_console()
    settled = len(known.letters) - number
    console.print(f"{topic}: {show_count(number, 'open letter')}, {settled:,} settled or copies")
    if not groups:
        return
    for each in groups[:_MOST_ROWS]:
        replayed = f", replayed up to {each.replays} times" if each.replays > 0 else ""
        written = f"{_moment(each.first)} to {_moment(each.last)}"
        console.print(f"{each.letters:>11,}  {written}{replayed}  {_headers(each)}  [{each.place}]")
    if len(groups) > _MOST_ROWS:
        console.print(f"and {len(groups) - _MOST_ROWS:,} more: see --json")
    console.print(f"kmr dlq show {topic} {groups[0].place} prints the oldest of the first line")


@app.command
@settings_flags(CLUSTER)
def show(
    topic: str,
    place: str | None = None,
    /,
    *,
    given: Given[ClusterSettings],
    which: LetterFilter | None = None,
    rows: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Print one letter: where the record was, why it failed, its headers, key and value.

    Without a place it is the oldest open one that fits the conditions. With --rows, it is the row of each
    open letter of a row that fits them.

    Parameters
    ----------
    topic
        The topic of a DeadLetterWriter.
    place
        PARTITION:OFFSET of the letter in the topic, or TOPIC:PARTITION:OFFSET of its record.
    rows
        Print instead the rows of the letters of rows that were made of many records, a JSON object on each
        line.
    """
    connection = _connection(given.load())
    if place is None:
        known = anyio.run(read_letters, connection, topic)
        fits = known.open & (which or LetterFilter()).filter().matches(known.letters)
        if rows:
            fits &= known.letters.of_rows
        if not fits.any():
            raise ConsumerError(f"{topic} has no open letter that fits; see kmr dlq list {topic}")
        if rows:
            offsets = known.letters.offsets_by_partition(fits)
            _print_rows(topic, anyio.run(read_values, connection, topic, offsets))
            return
        (oldest, *_) = np.flatnonzero(fits)  # letters are in the order of their time
        place = f"{known.letters.partition[oldest]}:{known.letters.offset[oldest]}"
    elif which is not None or rows:
        raise SettingsError("give a place, or --rows and conditions such as --reason, not both")
    parsed = _PLACE.fullmatch(place)
    if parsed is None:
        raise SettingsError(f"give the place as 0:15 or orders:0:15, not {place!r}")
    of_record, partition, offset = parsed["topic"], parsed["partition"], parsed["offset"]
    wanted = TopicPartition(of_record or topic, int(partition))
    found = anyio.run(
        partial(find_letters, connection, topic, wanted, int(offset), of_record=bool(of_record))
    )
    for letter in found:
        _print_letter(letter)


def _print_letter(letter: pa.RecordBatch) -> None:
    console = plain_console()
    (row,) = letter.select(["partition", "offset", "key", "value", "headers"]).to_pylist()
    written = _moment(letter.column("timestamp").cast(pa.int64())[0].as_py() // 1000)
    console.print(f"letter {row['partition']}:{row['offset']}, written {written} UTC")
    pairs = [(pair["key"], pair["value"]) for pair in row["headers"] or ()]
    for name, value in pairs:
        if name in HEADERS:
            shown = _shown(value, lines=True).replace("\n", "\n    ")  # a traceback has several
            if name == TIMESTAMP and shown.isdecimal():
                shown = f"{_moment(int(shown))} UTC ({shown})"
            console.print(f"  {name.removeprefix('kmr.')}: {shown}")
    for name, value in pairs:
        if name not in HEADERS:
            console.print(f"  header {visible(name)}: {_shown(value)}")
    console.print(f"  key: {_shown(row['key'])}")
    console.print(f"  value: {_shown(row['value'])}")


@app.command
@settings_flags(CLUSTER)
def drop(
    topic: str,
    /,
    *,
    given: Given[ClusterSettings],
    which: LetterFilter | None = None,
    limit: int | None = None,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Settle open letters without a replay. They stay in the topic until its retention deletes them.

    Parameters
    ----------
    topic
        The topic of a DeadLetterWriter.
    limit
        Drop at most so many letters, the oldest first.
    dry_run
        Print which letters would be dropped.
    """
    config = _connection(given.load())
    known = anyio.run(read_letters, config, topic)
    new = _new_pass("drop", known, which, limit, "")
    chosen = new.select(known.letters, known.open)
    if not _announce(known, chosen, "dropped", dry_run=dry_run):
        return
    anyio.run(write_pass, config, topic, new)
    plain_console().print(f"{topic}: {show_count(int(chosen.sum()), 'letter')} dropped")


_FIRST_OF_REPLAY: Final = (
    "config", "strategy", "bootstrap_servers", "which", "to_topic",
    "limit", "rate", "resume", "dry_run", "log_level",
)  # fmt: skip


@app.command
@settings_flags(
    WORKER,
    without=(
        *("topics", "topic_pattern", "group", "until_caught_up", "auto_offset_reset", "executor"),
        *("history", "rate", "workers", "worker_restarts", "worker_restart_period"),
        "worker_live_timeout",
    ),
    first=_FIRST_OF_REPLAY,
)
def replay(
    topic: str,
    /,
    *,
    given: Given[Settings],
    which: LetterFilter | None = None,
    to_topic: str | None = None,
    limit: int | None = None,
    rate: str | None = None,
    resume: Annotated[bool, Parameter(negative=())] = False,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Process the records of open letters again, with a strategy and its sinks; or send them to a topic.

    A replay is a worker with a consumer group of its own, which ends when all chosen letters are settled.
    What the strategy guarantees holds: exactly once into ClickHouse, also if the replay is killed and
    resumed. A record that fails again becomes a new letter. --to-topic sends at least once.

    For example:

        kmr dlq replay hits-dead --strategy hits:strategy --dry-run
        kmr dlq replay hits-dead --strategy hits:strategy --reason ValueError

    Parameters
    ----------
    topic
        The topic of a DeadLetterWriter.
    to_topic
        Send the records to this topic instead, unchanged, for the workers that read it.
    limit
        Replay at most so many letters, the oldest first.
    rate
        Replay at most so many letters in a second: 500/s.
    resume
        Go on with a replay that did not end; it has the letters that it began with.
    dry_run
        Print which letters would be replayed.
    """
    settings = given.load(
        topics=(topic,),
        group="kmr-dlq",
        until_caught_up=True,
        auto_offset_reset="earliest",
        executor="thread",
        workers=1,
    )
    if (settings.strategy is None) == (to_topic is None) and not (resume and to_topic is None):
        raise SettingsError("give either --strategy module:attribute or --to-topic")
    if to_topic == topic:
        raise SettingsError(f"--to-topic {topic} is the topic of the letters; give another one")
    per_second = _rate(rate)
    setup_logs(settings.log)
    config = connection_config(settings)
    known = anyio.run(read_letters, config, topic)
    unfinished = anyio.run(unfinished_pass, config, topic, known)
    if resume:
        if unfinished is None:
            raise SettingsError(f"--resume: every replay of {topic} has ended")
        new, chosen = unfinished
    elif unfinished is not None:
        raise KmrError(
            f"a replay of {topic} has not ended ({unfinished[0].name}, to {unfinished[0].to}); wait for it, "
            "or if it was killed go on with --resume"
        )
    else:
        action: Literal["replay", "resend"] = "replay" if to_topic is None else "resend"
        new = _new_pass(action, known, which, limit, to_topic or settings.strategy or "")
        chosen = new.select(known.letters, known.open)
    _tell_of_rows(known, new)
    if not _announce(known, chosen, "replayed", dry_run=dry_run):
        return 0
    target = settings.strategy or new.to
    if new.action == "resend":
        strategy = Strategy(map=_as_it_was, reduce=[RecordWriter(new.to)])
    else:
        strategy = load_strategy(target)
    if not resume:
        anyio.run(write_pass, config, topic, new)
        known = anyio.run(
            read_letters, config, topic
        )  # another pass may have been written before ours
        chosen = next(
            m for p, m in zip(known.passes, known.masks, strict=True) if p.name == new.name
        )
    replaying = replay_of(strategy, known.letters.offsets_by_partition(chosen), per_second)
    if per_second is not None:  # rows go on, and offsets are committed, each second
        most = min(settings.max_batch_records, max(1, int(per_second)))
        settings = changed(settings, max_batch_records=most)
    # Imported last: it takes a second, and mistakes above should be reported at once.
    from ..worker_process import run_worker

    code = run_worker(
        replaying, changed(settings, group=group_of(topic, new.name), strategy=new.to or target)
    )
    if code == 0:
        left = int(anyio.run(read_letters, config, topic).open.sum())
        plain_console().print(
            f"{topic}: {show_count(int(chosen.sum()), 'letter')} replayed; {left:,} open"
        )
    return code


def _connection(settings: ClusterSettings) -> ConnectionConfig:
    # Our own error reports what the Kafka client cannot recover from.
    setup_logs(LogSettings(level="error"))
    return connection_config(settings)


def _new_pass(
    action: Literal["replay", "resend", "drop"],
    known: TopicLetters,
    which: LetterFilter | None,
    limit: int | None,
    to: str,
) -> Pass:
    if limit is not None and limit < 1:
        raise SettingsError(f"--limit must be at least 1, not {limit}")
    return Pass(
        name=uuid.uuid4().hex[:12],
        action=action,
        begun=time.time_ns() // 1_000_000,
        ends=known.ends,
        chosen=(which or LetterFilter()).filter(),
        to=to,
        limit=limit,
    )


def _rate(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        rate = float(text.removesuffix("/s"))
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise SettingsError(f"--rate must be letters per second, such as 500/s, not {text!r}")
    return rate


def _announce(known: TopicLetters, chosen: NDArray[np.bool_], done: str, *, dry_run: bool) -> bool:
    """Say how many letters are chosen, if it is none or a dry run; return whether to go on."""
    console = plain_console()
    count = int(chosen.sum())
    if not count:
        console.print(f"no open letter matches: nothing to be {done}")
    elif dry_run:
        console.print(f"dry run: {show_count(count, 'letter')} would be {done}")
        for each in summaries(known.letters, chosen)[:_MOST_ROWS]:
            console.print(f"  {each.letters:,} in {_headers(each)}")
    return count > 0 and not dry_run


def _tell_of_rows(known: TopicLetters, new: Pass) -> None:
    """Say that letters of rows stay open, and what to do with them."""
    rows = known.open & new.chosen.matches(known.letters) & known.letters.of_rows
    if count := int(rows.sum()):
        plain_console().print(
            f"{show_count(count, 'letter')} of rows that were made of many records: these are not replayed, "
            "because other rows have the same records. Mend the table, insert the row of each letter "
            "(kmr dlq show --rows), and settle the letters with kmr dlq drop"
        )


@map_batch
def _as_it_was(records: pa.RecordBatch) -> pa.RecordBatch:
    return records


def _headers(group: LetterGroup) -> str:
    *others, last = (visible(value) or "-" for value in group.common.values())
    return f"{' '.join(others)}: {last}" if others else last


def _print_rows(topic: str, values: list[bytes | None]) -> None:
    missing = 0
    for value in values:
        try:
            print_json(msgspec.Raw(value or b""), indent=-1)
        except msgspec.DecodeError:
            missing += 1
    if missing:
        raise ConsumerError(
            f"{topic}: {show_count(missing, 'letter')} of rows have no JSON: the row was too large for the "
            "topic, or another program wrote the letter; see kmr dlq show"
        )


def _moment(milliseconds_: int) -> str:
    return text_of(pa.array([milliseconds_ // 1000]).cast(pa.timestamp("s")), _SPACED)[0].as_py()  # type: ignore[no-any-return]


def _shown(value: bytes | None, *, lines: bool = False) -> str:
    if value is None:
        return "null"
    try:
        text = visible(value.decode(), lines=lines)
    except UnicodeDecodeError:
        text = repr(value)[2:-1]
    return text if len(text) <= _SHOWN_BYTES else f"{text[:_SHOWN_BYTES]}... ({len(value):,} bytes)"
