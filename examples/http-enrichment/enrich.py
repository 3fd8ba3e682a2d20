"""Orders get the country of their customer from an HTTP service."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import msgspec

from kmr import Json, Record, Retries, Strategy, map_record
from kmr.sinks import StreamWriter


class Order(msgspec.Struct):
    """The value of a record."""

    id: int
    customer: str
    amount: float


class Enriched(msgspec.Struct):
    """A row."""

    id: int
    customer: str
    country: str
    amount: float
    partition: int
    offset: int


@asynccontextmanager
async def open_service() -> AsyncIterator[aiohttp.ClientSession]:
    """One pool of connections for each process, closed at its end."""
    url = os.environ.get("CUSTOMERS_URL", "http://127.0.0.1:8099")
    async with aiohttp.ClientSession(url) as session:
        yield session


@map_record(
    concurrency=32,
    timeout=5.0,
    retry=Retries(on=(aiohttp.ClientConnectionError, TimeoutError), attempts=4, backoff=0.05),
)
async def enrich(order: Order, record: Record, resources: aiohttp.ClientSession) -> Enriched:
    """Ask the service; an unknown customer (404) fails the record at once."""
    async with resources.get(f"/customers/{order.customer}") as response:
        response.raise_for_status()
        customer = await response.json()
    return Enriched(
        order.id, order.customer, customer["country"], order.amount, record.partition, record.offset
    )


strategy = Strategy(
    value=Json(Order),
    map=enrich,
    reduce=[StreamWriter(sys.stdout)],  # in earnest: a ClickHouseWriter
    reduce_err=StreamWriter(sys.stderr),
    resources=open_service,
)
