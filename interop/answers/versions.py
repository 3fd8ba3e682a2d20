"""ApiVersions of both brokers: the catalogue lists what Apache Kafka offers and the bundled broker lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kmr.broker.apis.catalogue import UNSUPPORTED, unsupported_feature

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Offered", "missing_entries"]

Range = tuple[int, int]
"""The least and the greatest version."""


class Offered(NamedTuple):
    """What a broker offers.

    Attributes:
        apis: by key.
        features: by name (KIP-584).
    """

    apis: Mapping[int, Range]
    features: Mapping[str, Range]

    @classmethod
    def of(cls, response: Any) -> Offered:
        """Read an ApiVersionsResponse, from version 4."""
        return cls(
            {each.api_key: (each.min_version, each.max_version) for each in response.api_keys},
            {
                each.name: (each.min_version, each.max_version)
                for each in response.supported_features
            },
        )


def missing_entries(ours: Offered, theirs: Offered) -> Iterator[str]:
    """Differences that the catalogue of unsupported features does not have, and its entries that are none.

    APIs that Apache Kafka does not offer to clients, as those between nodes, may be listed too.
    """
    newest = {key: version for entry in UNSUPPORTED for key, version in entry.newest.items()}
    for key in sorted({*ours.apis, *theirs.apis}):
        our, their = ours.apis.get(key), theirs.apis.get(key)
        expected = their
        if their is not None and unsupported_feature(key):
            expected = None
        elif their is not None and newest.get(key, their[1]) <= their[1]:
            expected = their[0], newest.get(key, their[1])
        if our != expected or (key in newest and our == their):
            yield f"API {key}: versions {our}, Apache Kafka {their}, by the catalogue {expected}"
    levels = {level for entry in UNSUPPORTED for level in entry.levels}
    for name in sorted({*ours.features, *theirs.features, *levels}):
        level, their_level = ours.features.get(name), theirs.features.get(name)
        lacking = level is None and their_level is not None
        if lacking != (name in levels) or (level is not None and level != their_level):
            yield f"feature {name}: {level}, Apache Kafka {their_level}, listed: {name in levels}"
