"""What a query reads if nobody says otherwise."""

from __future__ import annotations

from kmr.kafka.connection import ConnectionConfig
from kmr.kafka.subscription import Subscription
from kmr.spark.source_settings import ClientConfig, SourceSettings


def test_a_source_begins_at_the_beginning_without_limits_and_stops_at_lost_data() -> None:
    client = ClientConfig(bootstrap_servers="k:9092", client_id="c")
    found = SourceSettings(subscription=Subscription(("a",)), client=client, group="g")
    assert (found.from_end, found.fail_on_data_loss) == (False, True)
    assert (found.max_offsets_per_trigger, found.min_partitions) == (None, None)


def test_a_client_of_a_source_can_connect_as_any_other() -> None:
    client = ClientConfig(bootstrap_servers="k:9092", client_id="c")
    assert isinstance(client, ConnectionConfig)
    assert client.isolation_level == "read_uncommitted"
