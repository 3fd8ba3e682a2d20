"""Spark: strategies as queries of Structured Streaming.

Here is how Spark reads Kafka (`reader.py`), and the session with its JVM (`session.py`); `engine/` is how one
micro-batch runs. Importing this package loads neither PySpark nor a JVM.
"""

from typing import TYPE_CHECKING, Any

from .._extras import require_extra
from .._lazy import lazy_exports

if TYPE_CHECKING:
    from .engine.engine import SparkEngine as SparkEngine
    from .engine.engine_settings import EngineSettings as EngineSettings

_import_name, __dir__ = lazy_exports(__name__)


def __getattr__(name: str) -> Any:
    try:
        return _import_name(name)
    except ModuleNotFoundError:
        require_extra("spark", f"kmr.spark.{name}")
        raise
