"""Sessions: reused, with our settings, and with errors that say what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from framework.spark.session import SparkUnavailable, is_connect, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_without_pyspark_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.spark.session.importlib.util.find_spec", lambda _: None)
    with pytest.raises(SparkUnavailable, match=r"pip install 'pyspark>=4\.2'"):
        open_session("local[2]")


def test_only_sc_addresses_are_spark_connect() -> None:
    assert is_connect("sc://localhost:15002")
    assert not is_connect("spark://localhost:7077")
    assert not is_connect(None)


@pytest.mark.slow
def test_a_running_session_is_reused(spark: SparkSession) -> None:
    assert open_session(settings={"spark.sql.shuffle.partitions": "3"}) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


@pytest.mark.slow
def test_a_session_on_another_master_is_refused(spark: SparkSession) -> None:
    with pytest.raises(SparkUnavailable, match=r"runs on local\[2\] .*, not on local\[3\]"):
        open_session("local[3]")
    assert spark.range(1).count() == 1
