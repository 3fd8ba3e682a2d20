"""The order in which test files start, and which of them one process of pytest runs.

With `--dist loadfile` a process that is free takes the next file. Long files come first, so that no process
still works on one when all others have nothing left to do.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling

__all__ = ["pytest_collection_modifyitems", "pytest_xdist_make_scheduler"]

_ROOT: Final = Path(__file__).parents[1]
_SPARK: Final = "Spark's session"

_ON_SPARK: Final = (
    "tests/framework/spark/engine/test_engine.py",
    "tests/framework/spark/test_stream.py",
    "tests/framework/spark/test_session.py",
    "tests/framework/sinks/spark/test_writer_on_spark.py",
    "tests/framework/sinks/spark/test_raising.py",
    "tests/framework/sinks/clickhouse/spark/test_clickhouse_source.py",
    "tests/framework/spark/engine/test_checkpoint.py",
    "tests/framework/cli/test_check.py",
)
"""They share the fixture `spark`: one process runs them all, so that one JVM starts and warms up."""

_LONG: Final = (
    *_ON_SPARK,  # writes the class archive of `quick_jvms`, for which all others would wait
    "tests/chaos/test_suite.py",
    "tests/framework/history/test_cutover.py",
    "tests/framework/history/test_backfill.py",
    "tests/framework/spark/end_to_end/test_memory_killed.py",
    "tests/framework/spark/end_to_end/test_kill.py",
    "tests/demo/test_demo.py",
    "tests/framework/history/test_backfill_spark.py",
    "tests/docs/test_blocks.py",
    "tests/framework/history/test_backfill_archive.py",
    "tests/framework/sinks/spark/end_to_end/test_process.py",
    "tests/framework/history/test_audit.py",
    "tests/framework/torture/test_sinks.py",
    "tests/framework/memory/test_windows_killed.py",
    "tests/framework/sinks/spark/end_to_end/test_connect.py",
    "tests/framework/spark/end_to_end/test_cluster.py",
    "tests/framework/history/test_backfill_memory.py",
    "tests/broker/durability/test_power_loss.py",
    "tests/broker/guarantees/test_memory.py",
    "tests/framework/guarantees/test_distinct.py",
    "tests/framework/guarantees/test_distinct_properties.py",
    "tests/framework/guarantees/test_dead_letters.py",
    "tests/framework/guarantees/test_signals_and_exit_codes.py",
    "tests/framework/sinks/test_changes_end.py",
    "tests/framework/simulation/test_simulate.py",
    "tests/docs/test_site.py",
    "tests/interop/test_bad_requests.py",
    "tests/interop/test_kill.py",
    "tests/packaging/test_distribution.py",
    "tests/interop/test_transactions.py",
    "tests/interop/test_compaction.py",
    "tests/framework/sinks/clickhouse/test_joined.py",
    "tests/framework/sinks/clickhouse/test_violations.py",
    "tests/framework/sinks/clickhouse/test_staging.py",
    "tests/framework/sinks/clickhouse/test_inserts.py",
)
"""Files of more than 12 seconds, in the order of their starts."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long files first; the order within a file stays."""
    missing = [file for file in _LONG if not (_ROOT / file).is_file()]
    assert not missing, f"{__file__} names files that are not there: {missing}"
    rank = {_ROOT / file: at for at, file in enumerate(_LONG)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


@pytest.hookimpl(optionalhook=True)  # pytest may run without xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Let one process run all files that share Spark's session."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class OneSession(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return _SPARK if file in _ON_SPARK else file

    return OneSession(config, log)
