"""Keys go to the partitions that other clients give them."""

import pytest
from aiokafka.partitioner import murmur2
from hypothesis import given
from hypothesis import strategies as st

from broker.client import partitioner
from broker.client.partitioner import partitions_of


@given(st.lists(st.binary(max_size=70), max_size=50), st.integers(1, 100))
def test_keys_go_where_the_clients_of_kafka_send_them(keys: list[bytes], partitions: int) -> None:
    expected = [(murmur2(key) & 0x7FFFFFFF) % partitions for key in keys]
    assert partitions_of(keys, partitions).tolist() == expected


@pytest.mark.parametrize(
    ("key", "murmur"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-longer-string", -1486304829)],
)
def test_hashes_are_those_of_the_java_client(key: bytes, murmur: int) -> None:
    assert partitions_of([key], 2**31 - 1).tolist() == [(murmur & 0x7FFFFFFF) % (2**31 - 1)]


def test_a_long_key_among_many_short_ones_needs_no_huge_matrix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = [b"k%d" % index for index in range(100)] + [b"x" * 100_000]
    expected = partitions_of(keys, 7).tolist()
    monkeypatch.setattr(partitioner, "_MAX_MATRIX_BYTES", 10_000)
    assert partitions_of(keys, 7).tolist() == expected
