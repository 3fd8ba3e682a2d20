"""`kmr broker features`: the APIs that the bundled broker serves, and the features of Kafka that it lacks."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cyclopts import Parameter
from kio.schema.index import api_key_map, schema_name_map

from ..apis.catalogue import SERVED, UNSUPPORTED, advertised_versions
from ..protocol.messages import api_keys
from .terminal import AsJson, columns, reports, say, say_json

if TYPE_CHECKING:
    from ..apis.api import AdvertisedVersions
    from ..apis.catalogue import Unsupported

_WIDTH = 100


@reports
def features(
    *,
    as_json: AsJson = False,
    as_markdown: Annotated[bool, Parameter("--markdown", negative=(), show_default=False)] = False,
) -> int:
    """List the APIs and versions that the bundled broker serves, and the features of Kafka that it lacks.

    KAFKA is the newest version of an API in Kafka.

    Parameters
    ----------
    as_json
        Print JSON.
    as_markdown
        Print the features that it lacks as a table in Markdown, as in docs/broker.md.
    """
    if as_markdown:
        say(unsupported_table())
        return 0
    if as_json:
        say_json(
            {
                "served": [_served(versions)._asdict() for versions in advertised_versions(SERVED)],
                "unsupported": [
                    {
                        **entry._asdict(),
                        "apis": [_api(key) for key in entry.apis],
                        "newest": {_api(key): newest for key, newest in entry.newest.items()},
                    }
                    for entry in UNSUPPORTED
                ],
            }
        )
        return 0
    rows = [_served(versions) for versions in advertised_versions(SERVED)]
    say(*columns(["API", "KEY", "FROM", "TO", "KAFKA"], rows), "")
    say("Not supported:")
    for entry in UNSUPPORTED:
        say("", *wrap(entry.feature, _WIDTH))
        say(*wrap(entry.instead, _WIDTH, initial_indent="  ", subsequent_indent="  "))
        if names := _lacking(entry):
            say(*wrap(f"APIs: {names}", _WIDTH, initial_indent="  ", subsequent_indent="  "))
    return 0


def unsupported_table() -> str:
    """Return the features that the broker lacks as a table in Markdown, which docs/broker.md includes."""
    rows = ["| feature of Kafka | instead | APIs |", "| --- | --- | --- |"]
    rows += (f"| {entry.feature} | {entry.instead} | {_lacking(entry)} |" for entry in UNSUPPORTED)
    return "\n".join(rows)


def _lacking(entry: Unsupported) -> str:
    """Return what ApiVersions does not have because of a feature."""
    return ", ".join(
        [
            *(f"{_api(key)} ({key})" for key in entry.apis),
            *(f"{_api(key)} ({key}) after {newest}" for key, newest in entry.newest.items()),
            *entry.levels,
        ]
    )


class _Served(NamedTuple):
    api: str
    key: int
    min_version: int
    max_version: int
    kafka_max_version: int


def _served(versions: AdvertisedVersions) -> _Served:
    newest = max(schema_name_map[api_key_map[versions.key]])
    return _Served(_api(versions.key), *versions, newest)


def _api(key: int) -> str:
    """Return an API's name in Kafka."""
    return next(name for name, its_key in api_keys().items() if its_key == key)
