"""Our source under the name `kafka`, which Spark keeps for its own even where that is not installed.

For this one name Spark answers that the connector is missing before it looks at sources in Python, unless
its class loader has a class `kafka.DefaultSource`. So one is put there: it adds nothing to the class that
Spark has for every source in Python.

A query can move from Spark's own source to this one, and back, with its checkpoint: the offsets in it are
the same, and the name of the format is not in it. (What Spark's source keeps under `sources/0` is where a
query without a checkpoint began; ours has no use for it, and Spark's does not miss it.)

1. Stop the query when at least one micro-batch is complete: `commits/` in the checkpoint has a file.
   Before, its first micro-batch would begin where the other source thinks that a new query begins.
2. Change the format, or call `register(spark, name="kafka")` and change nothing. Keep the options: the
   subscription, and `kafka.*` (stores of keys and certificates must be PEM).
3. Start it with the same checkpoint. A micro-batch that was not complete is read again, with the same
   offsets.
"""

from __future__ import annotations

import struct
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from framework.errors import KmrError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

__all__ = ["NAME", "register_as_kafka"]

NAME: Final = "kafka"

_CLASS: Final = "kafka/DefaultSource"
_PARENT: Final = "org/apache/spark/sql/execution/datasources/v2/python/PythonDataSourceV2"
_LOADER: Final = "MutableURLClassLoader"
_JAVA_8: Final = 52
_PUBLIC: Final = 0x0001
_SUPER: Final = 0x0020


def register_as_kafka(spark: SparkSession, source: type[DataSource]) -> None:
    """Make `source` what `format("kafka")` means in this session, for all of its threads.

    Raises:
        KmrError: Spark's own source is on the class path; or this is a Spark Connect session.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql.udf import _wrap_function

    session: Any = getattr(spark, "_jsparkSession", None)
    if session is None:
        raise KmrError(f"the name {NAME} cannot be given to our source over Spark Connect")
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  there is no public way
    wrapped = _wrap_function(spark.sparkContext, cast("Any", source))
    python = jvm.org.apache.spark.sql.execution.datasources.v2.python
    manager = session.sessionState().dataSourceManager()
    if not manager.dataSourceExists(NAME):
        try:
            spark.read.format(NAME).load()
        except AnalysisException as error:
            if error.getCondition() != "KAFKA_DATA_SOURCE_NOT_ENABLED":
                raise KmrError(
                    "Spark's own Kafka source is on the class path, and keeps its name"
                ) from None
        _add_class(jvm)
    manager.registerDataSource(NAME, python.UserDefinedPythonDataSource(wrapped))


def _add_class(jvm: Any) -> None:
    """Put the class where the driver looks for classes, for as long as it lives."""
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    while loader is not None and not loader.getClass().getSimpleName().endswith(_LOADER):
        loader = loader.getParent()
    if loader is None:
        raise KmrError(f"this Spark does not let classes be added: start it with a JAR for {NAME}")
    jar = Path(tempfile.mkdtemp(prefix="kmr-kafka-")) / "kafka.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr(f"{_CLASS}.class", _class_file())
    loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())
    loader.loadClass(_CLASS.replace("/", "."))  # from here on the file is not needed
    jar.unlink()
    jar.parent.rmdir()


def _class_file() -> bytes:
    """`public class kafka.DefaultSource extends PythonDataSourceV2 {}`, compiled (JVMS 4)."""

    def text(value: str) -> bytes:
        return struct.pack(">BH", 1, len(value)) + value.encode()

    pool = [
        text(_CLASS),
        struct.pack(">BH", 7, 1),  # 2: this class
        text(_PARENT),
        struct.pack(">BH", 7, 3),  # 4: its parent
        text("<init>"),
        text("()V"),
        text("Code"),
        struct.pack(">BHH", 12, 5, 6),
        struct.pack(">BHH", 10, 4, 8),  # 9: the parent's constructor
    ]
    call_parent = bytes([0x2A, 0xB7, 0, 9, 0xB1])  # aload_0, invokespecial #9, return
    code = struct.pack(">HHI", 1, 1, len(call_parent)) + call_parent + struct.pack(">HH", 0, 0)
    constructor = struct.pack(">HHHHHI", _PUBLIC, 5, 6, 1, 7, len(code)) + code
    return b"".join(
        [
            struct.pack(">IHHH", 0xCAFEBABE, 0, _JAVA_8, len(pool) + 1),
            *pool,
            struct.pack(">HHHHHH", _PUBLIC | _SUPER, 2, 4, 0, 0, 1),
            constructor,
            struct.pack(">H", 0),
        ]
    )
