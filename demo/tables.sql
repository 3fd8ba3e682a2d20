-- The tables of the demo. The deduplication window lets a repeated insert with the same token vanish.
CREATE TABLE IF NOT EXISTS flights
(
    `carrier`   LowCardinality(String),
    `flight`    UInt16,
    `tailnum`   Nullable(String),
    `origin`    LowCardinality(String),
    `dest`      LowCardinality(String),
    `time_hour` DateTime,
    `dep_delay` Nullable(Int16),
    `arr_delay` Nullable(Int16),
    `air_time`  Nullable(UInt16),
    `distance`  UInt16,
    `topic`     LowCardinality(String),
    `partition` UInt32,
    `offset`    UInt64,
    `timestamp` DateTime64(3)
)
ENGINE = MergeTree
PRIMARY KEY (topic, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS kmr_consumer_ingest
(
    `topic`     LowCardinality(String),
    `partition` UInt32,
    `offset`    UInt64,
    `timestamp` DateTime
)
ENGINE = MergeTree
PRIMARY KEY (topic, partition, offset, timestamp)
SETTINGS non_replicated_deduplication_window = 10000;
