"""Quix Streams counts hits: `python -m bench.windows.quix JOB`, in an environment of its own.

Its windows close for all keys of a partition, as those of kmr, and its rows are written at least once.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

import clickhouse_connect
import msgspec

from bench.process import Stopwatch, Taken
from bench.windows.job import PARTITIONS, TABLE, Hit, WindowJob


def count(job: WindowJob) -> Taken:
    """Count until all rows are written."""
    from quixstreams import Application
    from quixstreams.models import TopicConfig
    from quixstreams.sinks import BatchingSink

    decode = msgspec.json.Decoder(Hit).decode
    watch = Stopwatch()

    def moment(value: bytes, *_: Any) -> int:
        watch.begin()
        return int(decode(value).ts.timestamp() * 1000)

    class Sink(BatchingSink):  # type: ignore[misc]
        def setup(self) -> None:
            self._client = clickhouse_connect.get_client(dsn=job.clickhouse_url)

        def write(self, batch: Any) -> None:
            rows = [(*map(item.value.get, ("start", "end", "value")), item.key) for item in batch]
            start, end, hits, path = (list(column) for column in zip(*rows, strict=True))
            times = [[milliseconds * 1000 for milliseconds in each] for each in (start, end)]
            columns = [*times, [key.decode() for key in path], hits]
            self._client.insert(TABLE, columns, column_oriented=True)

    with tempfile.TemporaryDirectory() as state:
        app = Application(
            broker_address=job.bootstrap_servers,
            consumer_group=job.group,
            auto_offset_reset="earliest",
            state_dir=state,
            loglevel=None,
        )
        topic = app.topic(job.topic, value_deserializer="bytes", timestamp_extractor=moment)
        frame = app.dataframe(topic).tumbling_window(60_000).count().final("partition")
        if job.clickhouse_url is None:
            parts = TopicConfig(num_partitions=PARTITIONS, replication_factor=1)
            frame.to_topic(app.topic(job.results, config=parts))
        else:
            frame.sink(Sink())
        app.run(count=job.rows, collect=False)
        return watch.taken()


if __name__ == "__main__":
    json.dump(count(WindowJob(**json.loads(sys.argv[1])))._asdict(), sys.stdout)
