"""One strategy for both engines: trips to Parquet files, a directory for each city."""

import os

import pyarrow as pa
import pyarrow.compute as pc

from kmr import Json, Strategy, map_batch
from kmr.sinks import DeadLetterWriter, ParquetWriter

TRIP = pa.schema([("city", pa.string()), ("km", pa.float64()), ("minutes", pa.float64())])


@map_batch
def speeds(trips: pa.RecordBatch) -> pa.RecordBatch:
    """Return the trips with their speed; those that took no time are left out."""
    trips = trips.filter(pc.field("minutes") > 0)
    speed = pc.divide(trips.column("km"), pc.divide(trips.column("minutes"), 60))
    kept = trips.select(["city", "km", "partition", "offset", "kmr_offset"])
    return kept.append_column("km_per_hour", speed)


strategy = Strategy(
    value=Json(TRIP),
    map=speeds,
    reduce=[ParquetWriter(os.environ.get("TRIPS", "trips"), partition_by="city")],
    reduce_err=DeadLetterWriter("trips-dead"),
)
