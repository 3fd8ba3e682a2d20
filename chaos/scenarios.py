"""The scenarios: a system, its faults, and the expected outcome."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from chaos.faults import FAULTS
from chaos.hanging import DEADLINE, HangingMap, SinkPastDeadline
from chaos.hostile import HostileClient
from chaos.resets import ResetOffsets, ResetPastSuspended
from chaos.retention import RetentionAtTheEdge
from chaos.shape import GroupSpec, Shape
from chaos.tails import LoseTail
from chaos.together import KillOneOfMany, RollWorkers
from chaos.verdicts import Delivery, Promise
from chaos.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.shape import Outside
    from chaos.site import Site
    from chaos.workload import Mode, Sink
    from kmr.chaos.faults import Need, StormFault

MIB: Final = 1024 * 1024

EVERY_FAULT: Final[dict[str, StormFault[Site]]] = FAULTS | {
    fault.name: fault
    for fault in (
        *(HangingMap(), SinkPastDeadline(), HostileClient(), ResetOffsets()),
        *(ResetPastSuspended(), LoseTail()),
        *(KillOneOfMany(), RollWorkers(), RetentionAtTheEdge()),
    )
}


@dataclass(frozen=True)
class Scenario:
    """A run in words.

    Attributes:
        faults: their names; all of them once a round, in an order that the seed decides.
        more_faults: by name, what can strike besides `EVERY_FAULT`.
        lasts: seconds after which no further fault strikes; 0: all rounds are done.
        between: records that must be acknowledged between two faults.
        finds: checkers that must find a violation, because the guarantee is switched off.
        patience: seconds for a fault to have its effect, and as many again for the system to recover.
        memory_limit: bytes that no process may exceed.
    """

    name: str
    about: str
    shape: Shape
    faults: Sequence[str]
    rounds: int = 1
    more_faults: Mapping[str, StormFault[Site]] = field(default_factory=dict)
    between: int = 1_000
    finds: frozenset[str] = frozenset()
    patience: float = 90.0
    memory_limit: int = 1_024 * MIB
    lasts: float = 0.0

    @property
    def arguments(self) -> str:
        """The arguments of `python -m chaos` that run it."""
        return f"--soak {self.lasts:g}s" if self.lasts else f"--scenario {self.name}"

    def promises(self, groups: Sequence[GroupSpec], topics: Sequence[str]) -> list[Promise]:
        """Of each group and topic; one whose guarantee is switched off claims exactly once, and fails."""
        return [
            Promise(
                spec.name,
                topic,
                "exactly-once" if self.finds else cast("Delivery", spec.workload.mode),
                # The writer gets rows of several partitions at once, and makes several INSERTs of them.
                ordered=not spec.workload.chain and not spec.workload.window,
                kept=spec.workload.table_engine != "expired",
                windows=bool(spec.workload.window),
                refuses=spec.workload.refuses,
                settled=not spec.stores_windows,
            )
            for spec in groups
            for topic in topics
        ]

    def impossible(self, outside: Outside) -> list[str]:
        """The faults that cannot strike services that are not ours, or this shape."""
        lacking: set[Need] = set()
        if outside.bootstrap_servers is not None:
            lacking.add("broker")
        if outside.clickhouse_url is not None:
            lacking.add("clickhouse")
        if all(spec.workload.sink != "postgres" for spec in self.shape.groups):
            lacking.add("postgres")
        if not self.shape.links:
            lacking.add("links")
        if any(spec.commands < 2 for spec in self.shape.groups):
            lacking.add("peers")
        return [name for name in self.faults if self.fault(name).needs & lacking]

    def fault(self, name: str) -> StormFault[Site]:
        """The fault of a name."""
        return self.more_faults[name] if name in self.more_faults else EVERY_FAULT[name]

    def of_mode(self, mode: Mode) -> Scenario:
        """The same, delivered in another way."""
        groups = [
            replace(spec, workload=replace(spec.workload, mode=mode)) for spec in self.shape.groups
        ]
        return replace(self, shape=replace(self.shape, groups=groups))


def _group(
    mode: Mode,
    workers: int = 2,
    *,
    name: str = "group",
    dead: str = "topic",
    chain: bool = False,
    engine: Literal["worker", "spark"] = "worker",
    evolve: bool = False,
    results: str = "",
    sink: Sink = "clickhouse",
    together: bool = False,
    **more: Any,
) -> GroupSpec:
    table = f"chaos_{name}"
    dead_letters = f"chaos-{name}-dead" if dead == "topic" else ""
    dead_table = f"{table}_dead" if dead == "table" else ""
    workload = Workload(
        *(table, mode, dead_table, dead_letters),
        chain=chain,
        evolve=evolve,
        topic=results,
        sink=sink,
        **more,
    )
    return GroupSpec(name, workload, workers, engine, together)


_CRASHES: Final = ("kill-worker", "kill-broker", "kill-clickhouse", "kill-everything")
_NETWORK: Final = (
    *("late-insert", "drop-answers", "drop-answer-and-kill", "cut-worker"),
    *("slow-sink", "hanging-sink"),
)
_WORKERS: Final = ("kill-worker", "restart-worker", "kill-broker", "short-storm")
_POSTGRES: Final = ("kill-postgres", "kill-postgres-and-workers", "pause-worker", *_WORKERS)
_WINDOWS: Final = (
    *("kill-worker", "pause-worker", "short-storm", "retention-at-the-edge", "kill-broker"),
    *(
        "kill-clickhouse-writing",
        "kill-clickhouse-and-workers",
        "drop-answer-and-kill",
        "late-insert",
    ),
)
_PATIENT: Final = ("pause-worker", "silent-network")

SHORT: Final = (
    Scenario(
        "crashes",
        "SIGKILL of one worker of a command, of broker, ClickHouse, and everything at once; a full disk",
        Shape([_group("exactly-once", together=True)]),
        ("kill-one-of-many", *_CRASHES[1:], "disk-full"),
    ),
    Scenario(
        "network",
        "late INSERTs, swallowed answers, a worker parted from the broker, a slow sink",
        Shape([_group("exactly-once", dead="table")], links=True),
        _NETWORK,
    ),
    Scenario(
        "storm",
        "two strategies in two groups on one topic, every worker restarted again and again",
        Shape(
            [_group("exactly-once", name="one"), _group("at-least-once", name="two", dead="table")],
            partitions=12,
        ),
        ("short-storm",),
    ),
    Scenario(
        "chain",
        "two reducers one after the other, at least once: workers come and go while records pile up",
        Shape([_group("at-least-once", chain=True)], partitions=12, links=True),
        ("rebalance-behind",),
    ),
    Scenario(
        "past-the-deadline",
        "a map that hangs, a sink that does not answer: the worker ends at its deadline all the same",
        Shape([_group("exactly-once")], links=True, flags=("--shutdown-deadline", f"{DEADLINE:g}")),
        ("hanging-map", "sink-past-deadline"),
    ),
    Scenario(
        "hostile-and-reset",
        "a client that sends oversized, false, endless and broken requests beside the normal load; the rows "
        "are deleted, and the group reads everything again: each row is there once more",
        Shape([_group("exactly-once", 1, dead="table")], rate=5_000),
        ("hostile-client", "reset-offsets"),
    ),
    Scenario(
        "commit-after-insert",
        "the guarantee switched off: INSERTs without tokens, offsets committed afterwards",
        Shape([_group("commit-after-insert")], links=True),
        ("drop-answer-and-kill",),
        finds=frozenset({"duplicates"}),
    ),
    Scenario(
        "resume-from-max",
        "the guarantee switched off: a new owner asks the table how far the last one came",
        Shape([_group("resume-from-max")], links=True),
        ("late-insert",),
        finds=frozenset({"duplicates"}),
    ),
)

_WINDOWED: Final = Shape(
    [_group("exactly-once", 3, window=1.0, refuses=True)],
    partitions=12,
    rate=2_500,
    links=True,
    repeat_every=50,
    topic_configs={"message.timestamp.type": "LogAppendTime"},
)

SLOW: Final = (
    Scenario(
        "windows",
        "windows of a second and a memory of ids, into a table that refuses some rows: workers and "
        "ClickHouse are killed in the emission, workers are suspended, partitions move, retention removes "
        "what is done",
        _WINDOWED,
        _WINDOWS,
    ),
    Scenario(
        "postgres",
        "into PostgreSQL: SIGKILL of it, of workers and the broker; a suspended worker; rebalances",
        Shape([_group("exactly-once", sink="postgres")]),
        _POSTGRES,
    ),
    Scenario(
        "parquet",
        "into Parquet files: SIGKILL of workers and the broker, rebalances",
        Shape([_group("exactly-once", sink="parquet")]),
        _WORKERS,
    ),
    Scenario(
        "spark",
        "the Spark engine, while ClickHouse is killed in its INSERTs, and the engine too",
        Shape([_group("exactly-once", 1, dead="table", engine="spark")], links=True),
        ("kill-clickhouse-and-workers", "kill-clickhouse-writing", "kill-worker"),
        patience=240,
    ),
    Scenario(
        "fan-out",
        "40 rows of each record with a budget of 64 MiB: SIGKILL of workers, broker, ClickHouse",
        Shape(
            [_group("exactly-once", fan_out=40)],
            rate=1_000,
            flags=("--inflight-bytes", "64MiB"),
        ),
        ("kill-worker", "kill-broker", "kill-clickhouse", "short-storm"),
    ),
    Scenario(
        "merging-tables",
        "tables that merge rows of one key, or expire them at once: nobody counts in vain, or stands still",
        Shape(
            [
                _group("exactly-once", name="replacing", table_engine="ReplacingMergeTree"),
                _group("exactly-once", name="summing", table_engine="SummingMergeTree"),
                _group("exactly-once", name="expired", table_engine="expired"),
            ],
            links=True,
            rate=1_000,
        ),
        ("drop-answer-and-kill", "kill-clickhouse", "kill-worker", "short-storm"),
    ),
    Scenario(
        "every-exception",
        "a map that raises CancelledError, SystemExit, KeyboardInterrupt and others: they are dead letters",
        Shape([_group("exactly-once", together=True, raises=True)], poison_every=250, rate=1_000),
        ("kill-one-of-many", "kill-worker", "roll-workers"),
    ),
    Scenario(
        "reset-past-suspended",
        "the rows are deleted and the group is reset while a worker is suspended, which wakes up late",
        Shape([_group("exactly-once", 3, dead="table")], rate=1_000),
        ("reset-past-suspended",),
        rounds=2,
    ),
    Scenario(
        "lost-tails",
        "the power fails and logs lose their last batches: workers end before new records get those offsets, "
        "and the commands that they name begin anew; ClickHouse and workers are killed",
        Shape([_group("exactly-once", 3)], links=True, rate=1_000, poison_every=0),
        ("lose-tail", "drop-answer-and-kill", "kill-clickhouse", "kill-worker"),
        rounds=2,
    ),
    Scenario(
        "two-topics",
        "rows of two topics, with the same offsets, in one table: a supervisor with ClickHouse, and one with "
        "PostgreSQL",
        Shape(
            [
                _group("exactly-once", name="one", together=True),
                _group("exactly-once", name="two", together=True, sink="postgres"),
            ],
            topics=2,
            partitions=3,
            rate=1_000,
        ),
        ("kill-one-of-many", "kill-clickhouse", "kill-postgres", "kill-broker", "short-storm"),
    ),
    Scenario(
        "two-topics-spark",
        "the same with an engine of Spark",
        Shape(
            [_group("exactly-once", 1, dead="table", engine="spark")],
            topics=2,
            partitions=3,
            rate=1_000,
            links=True,
        ),
        ("kill-clickhouse-and-workers", "kill-worker"),
        patience=240,
    ),
    Scenario(
        "topic-to-topic",
        "rows go to a topic, in transactions that commit their offsets: SIGKILL of workers and broker, "
        "suspended workers, restarts of all",
        Shape([_group("exactly-once", 3, results="chaos-results")]),
        ("kill-worker", "kill-broker", "pause-worker", "short-storm"),
    ),
)
"""Short ones that take minutes: the test suite does not run them."""

LONG: Final = (
    Scenario(
        "windows-storm",
        "the same five times, with 100,000 windows and more",
        _WINDOWED,
        _WINDOWS,
        rounds=5,
        between=5_000,
        patience=180,
    ),
    Scenario(
        "postgres-storm",
        "into PostgreSQL: everything that kills, suspends and restarts, five times",
        Shape([_group("exactly-once", 4, sink="postgres")], partitions=12),
        _POSTGRES,
        rounds=5,
        patience=180,
    ),
    Scenario(
        "parquet-storm",
        "into Parquet files: workers and the broker are killed and restarted, five times",
        Shape([_group("exactly-once", 4, sink="parquet")], partitions=12),
        _WORKERS,
        rounds=5,
        patience=180,
    ),
    Scenario(
        "spark-ranges",
        "two engines of Spark, into PostgreSQL and into Parquet files, are killed, and PostgreSQL too",
        Shape(
            [
                _group("exactly-once", 1, sink="postgres", name="one", engine="spark"),
                _group("exactly-once", 1, sink="parquet", name="two", engine="spark"),
            ],
            partitions=4,
            rate=500,
        ),
        ("kill-worker", "kill-postgres", "kill-postgres-and-workers", "restart-worker"),
        rounds=2,
        between=500,
        patience=300,
    ),
    Scenario(
        "everything",
        "every fault, three times",
        Shape([_group("exactly-once", 4)], partitions=16, rate=5_000, links=True),
        (*_CRASHES, *_NETWORK, *_PATIENT, "restart-worker", "disk-full"),
        rounds=3,
        between=5_000,
        patience=180,
    ),
    Scenario(
        "one-command",
        "kmr run --workers 3: single workers, the supervisor and everything are killed and restarted, all "
        "workers are replaced one by one",
        Shape([_group("exactly-once", 3, together=True)], partitions=12),
        ("kill-one-of-many", "roll-workers", "restart-worker", *_CRASHES),
        rounds=3,
        between=3_000,
    ),
    Scenario(
        "torn-inserts",
        "ClickHouse is killed 20 times while it writes",
        Shape([_group("exactly-once", 3)], partitions=12, links=True),
        ("kill-clickhouse-writing", "kill-clickhouse-and-workers"),
        rounds=10,
        between=500,
    ),
    Scenario(
        "schema-changes",
        "rows get a hundred new columns, which the workers add while they are killed",
        Shape([_group("exactly-once", 3, evolve=True)], partitions=12, rate=1_000, links=True),
        (*_CRASHES, "drop-answers", "drop-answer-and-kill", "restart-worker"),
        rounds=2,
        between=20_000,
        patience=180,
    ),
    Scenario(
        "rebalance-storm",
        "8 workers, 32 partitions, 16 restarts of each, 100,000 records and more",
        Shape([_group("exactly-once", 8)], partitions=32, rate=2_000),
        ("rebalance-storm",),
        between=10_000,
        patience=1_800,
    ),
    Scenario(
        "many-partitions",
        "300 partitions with little each, whose ranges are written together: crashes, swallowed answers",
        Shape([_group("exactly-once", 3)], partitions=300, rate=3_000, links=True),
        (*_CRASHES, "drop-answers", "drop-answer-and-kill", "pause-worker", "restart-worker"),
        between=5_000,
    ),
    Scenario(
        "chains",
        "chains of two reducers at least once: every kind of rebalance, kills and a slow sink",
        Shape([_group("at-least-once", 4, chain=True)], partitions=16, links=True),
        ("rebalance-behind", "short-storm", "pause-worker", *_CRASHES, *_NETWORK),
        rounds=2,
    ),
    Scenario(
        "spark-storm",
        "the Spark engine: crashes of everything, torn INSERTs, swallowed answers, a slow sink",
        Shape([_group("exactly-once", 1, dead="table", engine="spark")], links=True),
        (
            *_CRASHES,
            *("kill-clickhouse-and-workers", "kill-clickhouse-writing", "restart-worker"),
            *("drop-answers", "drop-answer-and-kill", "slow-sink", "hanging-sink"),
        ),
        patience=300,
    ),
    Scenario(
        "windows-storm-spark",
        "100,000 windows and more by the Spark engine, which is killed alone, with ClickHouse, and with all",
        Shape(
            [_group("exactly-once", 1, dead="table", engine="spark", window=1.0)],
            partitions=4,
            links=True,
            repeat_every=50,
            rate=1_000,
            topic_configs={"message.timestamp.type": "LogAppendTime"},
        ),
        (
            *("kill-worker", "kill-clickhouse-and-workers", "kill-clickhouse-writing"),
            *("drop-answer-and-kill", "kill-everything"),
        ),
        between=10_000,
        patience=300,
    ),
    Scenario(
        "topic-to-topic-storm",
        "rows go to a topic in transactions: crashes, suspended and parted workers, a full disk, three times",
        Shape([_group("exactly-once", 4, results="chaos-results")], partitions=16, links=True),
        (
            *("kill-worker", "kill-broker", "kill-everything", *_PATIENT, "cut-worker"),
            *("short-storm", "restart-worker", "disk-full"),
        ),
        rounds=3,
        patience=180,
    ),
    Scenario(
        "at-least-once",
        "crashes and network without exactly once: nothing is lost, doubles are legal",
        Shape([_group("at-least-once", 3)], partitions=12, links=True),
        (*_CRASHES, *_NETWORK, "pause-worker"),
    ),
    Scenario(
        "at-most-once",
        "offsets committed before the INSERT: nothing is doubled, losses are legal",
        Shape([_group("at-most-once", 3)], partitions=12, links=True),
        (*_CRASHES, "cut-worker", "pause-worker", "slow-sink"),
    ),
)

SCENARIOS: Final = {scenario.name: scenario for scenario in (*SHORT, *SLOW, *LONG)}
