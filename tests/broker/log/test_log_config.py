from dataclasses import replace
from typing import Any

import pytest

from kmr.broker.log.log_config import LogConfig


def test_the_defaults_are_kafkas() -> None:
    config = LogConfig()
    assert (config.segment_bytes, config.max_message_bytes) == (2**30, 1_048_588)
    assert (config.retention_ms, config.retention_bytes) == (7 * 24 * 3600 * 1000, -1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment_bytes", 0),
        ("segment_bytes", 2**31),
        ("segment_ms", 0),
        ("retention_ms", -2),
        ("max_message_bytes", -1),
        ("index_interval_bytes", -1),
        ("fsync_interval", 0.0),
        ("fsync", "sometimes"),
        ("message_timestamp_type", "createtime"),
        ("cleanup_policy", "keep"),
    ],
)
def test_a_setting_out_of_range_is_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} = .*{value}.*: must be"):
        replace(LogConfig(), **{name: value})
