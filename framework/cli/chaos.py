"""`kmr chaos`: run a strategy as real processes, break them on purpose, and count what arrived."""

from __future__ import annotations

import logging
import random
import shutil
import signal
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from .._extras import require_extra
from ..config.schema import SECONDS, parse_quantity, show_count
from ..errors import KmrError, SettingsError
from ..loading import load_strategy
from .output import plain_console

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..chaos.records import Values
    from ..chaos.storm import Storm, StormOutcome
    from ..strategy import Strategy

_GENERATED = "generated"


def chaos(
    strategy: str,
    /,
    *,
    records: str = _GENERATED,
    faults: Annotated[int, Parameter(negative=())] = 10,
    duration: str | None = None,
    seed: int | None = None,
    workers: int = 3,
    partitions: int = 6,
    rate: float = 500.0,
    topic: str = "chaos",
    directory: Annotated[Path | None, Parameter(name="--dir")] = None,
) -> int:
    """Run a strategy as real processes, break them on purpose, and count what arrived.

    It starts a broker, workers and, where the strategy writes to ClickHouse, the embedded ClickHouse. While
    records flow, it kills, stops, suspends and restarts them. At the end the workers drain, and each record
    is looked for: in the sink as often as the strategy promises, in reduce_err, or filtered by the map.

    The strategy writes to its own sinks, which must name the records of their rows (columns partition, offset
    and topic): give it a table, topic or directory for tests. Only the processes of this run are harmed: the
    broker, the workers, and the embedded ClickHouse where a ClickHouseWriter names no server. The exit code
    is 1 if a guarantee was broken; data and logs are kept then.

    For example:

        kmr chaos hits:strategy --records hits.jsonl
        kmr chaos hits:strategy --duration 10m --workers 4 --seed 7

    Parameters
    ----------
    strategy
        The strategy: module:attribute. The current directory is searched first.
    records
        A file with the value of one record on each line; or `generated`: values that the strategy's format
        decodes, and some that are broken. They are sent over and over while faults strike.
    faults
        How many strike: each kind once, in an order that the seed decides, before one strikes again.
    duration
        Instead: for how long they strike, such as 10m.
    seed
        Repeats a schedule; by default another one each time.
    workers
        How many processes share the partitions.
    partitions
        Of each topic.
    rate
        Records per second.
    topic
        The topic's name, where the strategy distinguishes topics.
    directory
        Where data and logs are; by default a temporary one. It must be empty.
    """
    from ..chaos.delivered import delivered_by, needs_clickhouse
    from ..chaos.records import usable
    from ..chaos.services import ServiceFailed
    from ..chaos.storm import Storm, carry_out

    if min(faults, workers, partitions) < 1 or rate <= 0:
        raise SettingsError(
            "--faults, --workers and --partitions must be at least 1, --rate above 0"
        )
    seconds = 0.0 if duration is None else _seconds(duration)
    loaded = load_strategy(strategy)
    loaded.validate()
    seed = random.SystemRandom().getrandbits(32) if seed is None else seed
    values = _values(loaded, records, topic, seed)
    console = plain_console()
    with _place(directory) as place:
        if needs_clickhouse([*loaded.writers.values(), loaded.reduce_err]):
            require_extra("embedded", "kmr chaos, for a strategy that writes to ClickHouse,")
        storm = Storm(strategy, values, seed, workers, partitions, faults, seconds, rate)
        for name, each in values.items():
            console.print(f"{name}: {usable(loaded, name, each)}")
        for stage, writer in loaded.writers.items():
            if (sink := delivered_by(writer, storm.topic_partitions)) is not None:
                branch = stage.partition(" ")[2]
                console.print(f"rows{f' of {branch}' if branch else ''}: {sink.place}")
        errors = delivered_by(loaded.reduce_err, storm.topic_partitions)
        if loaded.reduce_err is not None:
            console.print(
                f"reduce_err: {errors.place if errors else 'not counted, it cannot be read'}"
            )
        console.print(f"seed {seed}; {loaded.requested_delivery}; {show_count(workers, 'worker')}")
        began = time.monotonic()

        def say(text: str) -> None:
            console.print(f"{time.monotonic() - began:6.1f} s  {text}")

        try:
            with _quiet_and_interruptible():
                outcome = carry_out(storm, loaded, place.path, say)
        except ServiceFailed as error:
            place.kept = True
            raise KmrError(f"the storm ended: {error}\nLogs: {place.path / 'logs'}") from error
        _show(console, loaded, storm, outcome)
        place.kept = place.kept or not outcome.ok
        if place.kept:
            console.print(f"Data and logs: {place.path}")
        return 0 if outcome.ok else 1


@contextmanager
def _quiet_and_interruptible() -> Iterator[None]:
    """Log nothing of the Kafka client, which cannot know that we meant it; SIGTERM is like Ctrl-C."""
    logger = logging.getLogger("aiokafka")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _interrupt) if is_main else None
    try:
        yield
    finally:
        logger.setLevel(level)
        if is_main:
            signal.signal(signal.SIGTERM, before)


def _interrupt(_number: int, _frame: object) -> None:
    signal.raise_signal(signal.SIGINT)


def _seconds(text: str) -> float:
    try:
        seconds = float(parse_quantity(text, SECONDS))
    except ValueError as error:
        raise SettingsError(f"--duration {text}: {error}") from error
    if seconds <= 0:
        raise SettingsError(f"--duration {text}: it must be above 0")
    return seconds


def _values(strategy: Strategy, records: str, topic: str, seed: int) -> dict[str, Values]:
    from ..chaos.records import generate, read_lines

    topics = [topic] if strategy.by_topic is None else list(strategy.by_topic)
    if records != _GENERATED:
        return dict.fromkeys(topics, read_lines(Path(records)))
    return {name: generate(strategy, name, seed) for name in topics}


@dataclass
class _WorkDirectory:
    """A directory, and whether it stays."""

    path: Path
    kept: bool


@contextmanager
def _place(directory: Path | None) -> Iterator[_WorkDirectory]:
    """Make the directory of a run; one that is not named is removed unless it is to be kept."""
    if directory is not None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if any(directory.iterdir()):
                raise SettingsError(f"--dir {directory}: it is not empty; name a new directory")
        except OSError as error:
            raise SettingsError(f"--dir {directory}: {error.strerror}") from error
        yield _WorkDirectory(directory.resolve(), kept=True)
        return
    place = _WorkDirectory(Path(tempfile.mkdtemp(prefix="kmr-chaos-")), kept=False)
    try:
        yield place
    finally:
        if not place.kept:
            shutil.rmtree(place.path, ignore_errors=True)


def _show(console: Any, strategy: Strategy, storm: Storm, outcome: StormOutcome) -> None:
    console.print(
        f"{show_count(outcome.struck, 'fault')}, {outcome.killed} "
        f"process{'' if outcome.killed == 1 else 'es'} killed, in {outcome.seconds:.0f} s."
    )
    delivery = strategy.requested_delivery
    for branch, verdict in outcome.verdicts.items():
        console.print(
            f"{f'{branch}: of' if branch else 'Of'} {verdict.records:,} records {verdict.delivered:,} are in "
            f"the sink ({verdict.rows:,} rows), {verdict.failed + verdict.refused:,} in reduce_err, "
            f"{verdict.filtered:,} {'without a row' if branch else 'filtered'}; {verdict.lost:,} lost, "
            f"{verdict.doubled:,} doubled."
        )
        if delivery == "at-least-once" and verdict.doubled:
            console.print("At least once: doubled records are allowed.")
        if delivery == "at-most-once" and verdict.lost:
            console.print("At most once: lost records are allowed.")
    if outcome.given_up:
        console.print(f"Broken: {outcome.given_up}")
    for died in outcome.died:
        console.print(f"Broken: {died} ended without a signal of ours")
    for branch, verdict in outcome.verdicts.items():
        for offence in verdict.offences:
            console.print(f"Broken: {f'{branch}: ' if branch else ''}{offence}")
    if outcome.ok:
        console.print(f"{delivery}: kept.")
    else:
        console.print(f"Again with the same schedule: --seed {storm.seed}")
