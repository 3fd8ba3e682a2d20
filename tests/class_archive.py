"""The classes that a session of Spark loads, in an archive (AppCDS): they are most of a driver's start."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Final

__all__ = ["QUICK_JVM", "class_archive"]

QUICK_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:cds=off -Xlog:cds+dynamic=off"
"""For a JVM that lives for seconds: it starts with half the processor time."""

_DIRECTORY: Final = Path(__file__).parents[1] / ".kmr" / "spark"
_LOAD_CLASSES: Final = """
import sys
from pyspark import SparkContext
from kmr.spark.session import open_session

def same(batches):
    yield from batches

directory = sys.argv[1]
session = open_session("local[2]", settings={"spark.sql.shuffle.partitions": "2"})
session.range(9).mapInArrow(same, "id long").write.parquet(f"{directory}/in")
stream = session.readStream.schema("id long").parquet(f"{directory}/in")
query = stream.writeStream.option("checkpointLocation", f"{directory}/checkpoint")
query = query.foreachBatch(lambda frame, _: frame.groupBy("id").count().toArrow())
query.trigger(availableNow=True).start().awaitTermination()
session.stop()
gateway = SparkContext._gateway
gateway.shutdown()
gateway.proc.stdin.close()  # what Spark's launcher waits for
gateway.proc.wait()
"""


def class_archive() -> Path | None:
    """Return the archive, made if it is not there; None if this Java makes none.

    It holds for one version of Spark in one place: a JVM compares the class path, and goes without.

    Raises:
        subprocess.CalledProcessError: a session of Spark does not start or end.
    """
    import pyspark

    from kmr.spark.jvm import find_jvm

    place = zlib.crc32(str(Path(pyspark.__file__).resolve()).encode())
    name = f"spark-{pyspark.__version__}-java-{find_jvm().version}-{place:08x}.jsa"
    _DIRECTORY.mkdir(parents=True, exist_ok=True)
    archive = _DIRECTORY / name
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the other processes of pytest wait for it
        if not archive.exists():
            fresh = archive.with_suffix(".fresh")
            with tempfile.TemporaryDirectory() as classes:
                subprocess.run(
                    [sys.executable, "-c", _LOAD_CLASSES, classes],
                    env=os.environ
                    | {"SPARK_SUBMIT_OPTS": f"{QUICK_JVM} -XX:ArchiveClassesAtExit={fresh}"},
                    check=True,
                    capture_output=True,
                )
            if fresh.exists():  # a Java runtime without class data sharing writes none
                fresh.replace(archive)
    return archive if archive.exists() else None
