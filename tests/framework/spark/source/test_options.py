"""The options of the Kafka source: every wrong one is an error that names it."""

from __future__ import annotations

import pytest

from kmr.errors import SettingsError
from kmr.spark.source.options import SourceOptions

BASE = {"kafka.bootstrap.servers": "k:9092", "subscribe": "t"}


def parse(**options: str) -> SourceOptions:
    return SourceOptions.parse(BASE | options, streaming=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"assign": '{"t": [0]}'}, "exactly one of assign, subscribe and subscribePattern, not 2"),
        ({"startingOffsets": "5"}, "startingOffsets must be JSON"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "t-0: -3 is not an offset"),
        ({"endingOffsets": "latest"}, "endingOffsets is only for batch queries"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be a whole number above 0"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss must be true or false"),
        ({"subscribe": " , "}, "subscribe names no topic"),
        ({"kafka.auto.offset.reset": "earliest"}, "use startingOffsets"),
        ({"kafka.isolation.level": "none"}, r"kafka\.isolation\.level must be one of"),
        ({"kafka.bootstrap.servers": ""}, r"kafka\.bootstrap\.servers is missing"),
        ({"minOffsetsPerTrigger": "1"}, "has no option minoffsetspertrigger"),
        ({"kafka.ssl.truststore.type": "JKS"}, "convert the store to PEM"),
    ],
)
def test_the_error_for_a_wrong_option_names_it(options: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse(**options)


def test_a_batch_cannot_begin_at_the_end() -> None:
    with pytest.raises(SettingsError, match="startingOffsets cannot be latest"):
        SourceOptions.parse(BASE | {"startingOffsets": "latest"}, streaming=False)


def test_names_of_options_may_be_in_any_case() -> None:
    found = parse(STARTINGOFFSETS="Earliest", MaxOffsetsPerTrigger="7", **{"Kafka.Client.Id": "me"})
    assert found.max_offsets_per_trigger == 7
    assert found.client.client_id == "me"


def test_the_jaas_line_is_parsed() -> None:
    line = 'org.apache.x.ScramLoginModule required username="u" password="p\\"q";'
    found = parse(**{"kafka.sasl.jaas.config": line, "kafka.security.protocol": "SASL_PLAINTEXT"})
    assert (found.client.sasl_username, found.client.sasl_password) == ("u", 'p"q')
