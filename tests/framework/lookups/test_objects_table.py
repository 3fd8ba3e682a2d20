"""Keys of objects and of dicts."""

from __future__ import annotations

import msgspec

from kmr.lookups.objects_table import key_of


class Named(msgspec.Struct, rename="camel"):
    customer_id: int


def test_a_key_is_found_in_dicts_and_objects() -> None:
    assert key_of({"id": 1}, ["id"]) == 1
    assert key_of({"id": 1, "at": 2}, ["id", "at"]) == (1, 2)
    assert key_of(Named(7), ["customer_id"]) == 7
