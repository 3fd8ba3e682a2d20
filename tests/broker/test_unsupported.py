from itertools import chain

from kio.schema.index import api_key_map

from broker.dispatch import SERVED, advertised_versions
from broker.unsupported import UNSUPPORTED

SERVED_KEYS = {versions.key for versions in advertised_versions(SERVED)}
LISTED = list(chain.from_iterable(entry.apis for entry in UNSUPPORTED))


def test_every_api_of_kafka_is_served_or_said_not_to_be() -> None:
    assert set(api_key_map) - SERVED_KEYS == set(LISTED), "keep broker.unsupported up to date"


def test_nothing_is_listed_twice() -> None:
    assert len(LISTED) == len(set(LISTED))
    assert len({entry.feature for entry in UNSUPPORTED}) == len(UNSUPPORTED)


def test_every_entry_says_what_is_there_instead() -> None:
    for entry in UNSUPPORTED:
        assert entry.instead.endswith("."), entry.feature
