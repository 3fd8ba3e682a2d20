"""Values that Apache Kafka 4.3.1 accepts and refuses; `make interop-kafka` compares them with Kafka."""

import pytest
from kio.schema.errors import ErrorCode

from kmr.broker.errors import RequestError
from kmr.broker.topics.setting_values import ConfigType, check_value, parse_value, shown_value
from kmr.broker.topics.topic_config import TOPIC_SETTINGS


def checked(name: str, text: str) -> str:
    value = parse_value(name, TOPIC_SETTINGS[name].type, text)
    check_value(name, value)
    return shown_value(value)


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("retention.ms", " +5 ", "5"),
        ("retention.ms", "007", "7"),
        ("preallocate", " TRUE ", "true"),
        ("min.cleanable.dirty.ratio", "5e-1", "0.5"),
        ("min.cleanable.dirty.ratio", "1", "1.0"),
        ("cleanup.policy", "delete, compact,delete", "delete,compact"),
        ("cleanup.policy", "", ""),
        ("leader.replication.throttled.replicas", "0:0, 1:0,0:0,", "0:0,1:0,0:0,"),
        ("compression.type", " gzip ", "gzip"),
        ("compression.gzip.level", "-1", "-1"),
        ("retention.bytes", "-9223372036854775808", "-9223372036854775808"),
    ],
)
def test_a_value_is_described_as_kafka_writes_it(name: str, text: str, shown: str) -> None:
    assert checked(name, text) == shown


@pytest.mark.parametrize(
    ("name", "text", "named", "reason"),
    [
        ("segment.bytes", " ", " ", "Not a number of type INT"),
        ("segment.bytes", "+5", "5", "Value must be at least 1048576"),
        ("retention.ms", "-2", "-2", "Value must be at least -1"),
        ("retention.ms", "1_000", "1_000", "Not a number of type LONG"),
        ("compression.zstd.level", "23", "23", "Value must be no more than 22"),
        ("compression.gzip.level", "0", "0", "Value must be between 1 and 9 or equal to -1"),
        ("min.cleanable.dirty.ratio", "1e3", "1000.0", "Value must be no more than 1"),
        ("min.cleanable.dirty.ratio", "Infinity", "Infinity", "Value must be no more than 1"),
        ("min.cleanable.dirty.ratio", "half", "half", "Not a number of type DOUBLE"),
        ("preallocate", "1", "1", "Expected value to be either true or false"),
        ("cleanup.policy", "delete,x", "x", "String must be one of: compact, delete"),
        ("message.timestamp.type", "", "", "String must be one of: CreateTime, LogAppendTime"),
    ],
)
def test_a_bad_value_is_refused_in_kafkas_words(
    name: str, text: str, named: str, reason: str
) -> None:
    with pytest.raises(RequestError) as refusal:
        checked(name, text)
    assert refusal.value.code is ErrorCode.invalid_config
    assert refusal.value.message == f"Invalid value {named} for configuration {name}: {reason}"


@pytest.mark.parametrize("policy", [",", "delete,", ",delete"])
def test_an_empty_cleanup_policy_among_others_is_refused(policy: str) -> None:
    with pytest.raises(RequestError, match=r"'cleanup\.policy' values must not be empty"):
        checked("cleanup.policy", policy)


@pytest.mark.parametrize("replicas", ["*,0:0", "0", "0:", "a:b", "-1:0", "0;0"])
def test_throttled_replicas_are_pairs_or_an_asterisk(replicas: str) -> None:
    with pytest.raises(RequestError, match=r"\] for configuration leader\..* must be the literal"):
        checked("leader.replication.throttled.replicas", replicas)


def test_every_number_has_the_limits_of_its_type() -> None:
    for kind, bits in ((ConfigType.INT, 31), (ConfigType.LONG, 63)):
        for edge in (2**bits - 1, -(2**bits)):
            assert parse_value("x", kind, str(edge)) == edge
        for beyond in (2**bits, -(2**bits) - 1):
            with pytest.raises(RequestError, match=f"Not a number of type {kind.name}"):
                parse_value("x", kind, str(beyond))
