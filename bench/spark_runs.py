"""One Spark session and the queries that are measured in it: `python -m bench.spark_runs ...`.

Prints one line of JSON: how long the session took to start, and seconds of micro-batches by what ran. The
first round warms up and is not counted: processes, connections and compiled code stay for later ones.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.streaming.listener import StreamingQueryListener

from bench.consume import TABLE, NullWriter, per_batch
from kmr import Strategy
from kmr.settings import Settings
from kmr.sinks import ClickHouseWriter
from kmr.spark.engine.engine import SparkEngine
from kmr.spark.engine.engine_settings import EngineSettings
from kmr.spark.session import open_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from kmr.reducers.reducer import Reducer

FLUSH_ROWS = 131_072
SMALL = 1_000  # records of a micro-batch whose cost is all its own
SMALL_BATCHES = 12
TIMEOUT = 300.0
QUERIES = ["null", "clickhouse", "small"]


class MicroBatch(NamedTuple):
    """Seconds, of one trigger from its first look at the topic to its entry in the checkpoint."""

    rows: int
    seconds: float


class Watch(StreamingQueryListener):
    """Keeps the micro-batches of the query that runs."""

    def __init__(self) -> None:
        self.seen: list[MicroBatch] = []
        self._over = threading.Event()

    def take(self) -> list[MicroBatch]:
        """The micro-batches of the query that has ended; forgets them."""
        if not self._over.wait(TIMEOUT):
            raise SystemExit("bench: Spark did not tell that a query has ended")
        self._over.clear()
        seen, self.seen = self.seen, []
        return seen

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  Spark's names
        """Nothing to measure."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """A micro-batch is in the checkpoint."""
        progress = event.progress
        milliseconds = progress.durationMs["triggerExecution"]
        self.seen.append(MicroBatch(progress.numInputRows, milliseconds / 1000))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing to measure."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing: every micro-batch was reported before."""
        self._over.set()


class Runs:
    """Queries in one session, each from the beginning of the topic to its end."""

    def __init__(self, session: SparkSession, options: argparse.Namespace) -> None:
        self._session = session
        self._options = options
        self._watch = Watch()
        session.streams.addListener(self._watch)

    def null(self) -> float:
        """Seconds of the engine: a map per batch, and a reducer that only counts."""
        self._engine(NullWriter())
        return self._reading()

    def clickhouse(self) -> float:
        """Seconds of the engine with rows written to ClickHouse."""
        url = self._options.clickhouse_url
        self._engine(ClickHouseWriter(table=TABLE, url=url, max_rows=FLUSH_ROWS))
        return self._reading()

    def small(self) -> list[MicroBatch]:
        """Micro-batches of few records, and those of none: what they cost by themselves."""
        limits: dict[str, Any] = {"max_offsets_per_trigger": SMALL}
        self._engine(NullWriter(), topic=self._options.small_topic, **limits)
        return self._watch.take()

    def _engine(self, sink: Reducer, topic: str | None = None, **limits: Any) -> None:
        settings = Settings(
            topics=(topic or self._options.topic,),
            group=uuid.uuid4().hex,
            bootstrap_servers=self._options.bootstrap_servers,
        )
        limits = {"max_offsets_per_trigger": self._options.records} | limits
        engine = EngineSettings(
            checkpoint=self._checkpoint(),
            master=self._options.master,
            trigger="available-now",
            **limits,
        )
        SparkEngine(Strategy(per_batch, [sink]), settings, engine, session=self._session).run()

    def _checkpoint(self) -> str:
        return str(self._options.directory / uuid.uuid4().hex)

    def _reading(self) -> float:
        """Seconds of the micro-batches that read something."""
        return sum(batch.seconds for batch in self._watch.take() if batch.rows)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap-servers", "clickhouse-url", "topic", "small-topic", "master"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True, help="0: only start a session")
    parser.add_argument("--queries", nargs="+", default=QUERIES, choices=QUERIES)
    options = parser.parse_args()
    begun = time.perf_counter()
    session = open_session(
        options.master,
        settings={"spark.log.level": "ERROR"},
        planning_only=True,
    )
    results: dict[str, Any] = {"session": time.perf_counter() - begun}
    if options.rounds:
        results |= measure(Runs(session, options), options.queries, options.rounds)
    session.stop()
    print(json.dumps(results))


def measure(runs: Runs, queries: Sequence[str], rounds: int) -> dict[str, Any]:
    """All queries in turn, so that all see the same machine."""
    results: dict[str, Any] = {query: [] for query in queries}
    for number in range(rounds + 1):
        for query in queries:
            result = getattr(runs, query)()
            if number:  # not the first
                results[query].append(result)
    batches = [batch for query in results.pop("small", []) for batch in query]
    empty = [batch.seconds for batch in batches if not batch.rows]
    small = [batch.seconds for batch in batches if batch.rows]
    return {**results, "empty": empty, "small": small}


if __name__ == "__main__":
    main()
