"""Spark: strategies as queries of Structured Streaming.

Three rooms: `source/` (how Spark reads Kafka), `engine/` (how one micro-batch runs), `runtime/` (the JVM
and the session). Importing this package loads neither PySpark nor a JVM.
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
