"""`kmr broker features`: what the bundled broker serves, and what of Kafka it does not."""

from __future__ import annotations

import re
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cyclopts import Parameter
from kio.schema.index import api_key_map, schema_name_map

from broker.cli.errors import reports
from broker.cli.text import columns, say, say_json
from broker.dispatch import SERVED, advertised_versions
from broker.unsupported import UNSUPPORTED

if TYPE_CHECKING:
    from broker.api import AdvertisedVersions

__all__ = ["features", "unsupported_table"]

_WIDTH = 100


@reports
def features(
    *,
    as_json: Annotated[bool, Parameter("--json", negative=(), show_default=False)] = False,
    as_markdown: Annotated[bool, Parameter("--markdown", negative=(), show_default=False)] = False,
) -> int:
    """List the APIs and versions that the bundled broker serves, and what of Kafka it does not have.

    KAFKA is the newest version that Kafka has of an API.

    Parameters
    ----------
    as_json
        Print JSON.
    as_markdown
        Print what is not there as a table, for documents.
    """
    if as_markdown:
        say(unsupported_table())
        return 0
    if as_json:
        say_json(
            {
                "served": [_served(versions)._asdict() for versions in advertised_versions(SERVED)],
                "unsupported": [
                    {**entry._asdict(), "apis": [_api(key) for key in entry.apis]}
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
        if entry.apis:
            names = ", ".join(f"{_api(key)} ({key})" for key in entry.apis)
            say(*wrap(f"APIs: {names}", _WIDTH, initial_indent="  ", subsequent_indent="  "))
    return 0


def unsupported_table() -> str:
    """What the broker does not have, as a table in Markdown; docs/broker.md has the same."""
    rows = ["| feature of Kafka | what is there instead | APIs |", "| --- | --- | --- |"]
    for entry in UNSUPPORTED:
        names = ", ".join(f"{_api(key)} ({key})" for key in entry.apis)
        rows.append(f"| {entry.feature} | {entry.instead} | {names} |")
    return "\n".join(rows)


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
    """An API's name in Kafka."""
    return re.sub(r"(?:^|_)(\w)", lambda match: match[1].upper(), api_key_map[key])
