"""No API, with as many elements in any list as it likes, takes the event loop for long.

`KMR_ELEMENTS=20000 pytest -s PATH` sends as many elements as a request may have.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING

import pytest

from tests.broker.many_elements import Shape, shapes
from tests.broker.raw_client import RawClient

if TYPE_CHECKING:
    from tests.broker.conftest import Start
    from tests.broker.loop_guard import LoopGuard

_ELEMENTS = int(os.environ.get("KMR_ELEMENTS", "1000"))
_ALL = sorted(shapes())
_SHAPES = (
    _ALL if _ELEMENTS > 10_000 else [next(each) for _, each in groupby(_ALL, lambda s: s.name)]
)


@pytest.mark.loop_guard(milliseconds=50 if _ELEMENTS > 10_000 else 20)
async def test_no_api_takes_the_event_loop_for_long(start: Start, loop_guard: LoopGuard) -> None:
    broker = await start(auto_create_topics=False)
    await broker.topics.create("t", 1_000)
    found = []
    for shape in _SHAPES:
        await _send(broker.bootstrap_servers, shape, 20)  # imports its messages
        for _ in range(3):  # a host that interrupts us makes one step long, not three in turn
            loop_guard.violations.clear()
            await _send(broker.bootstrap_servers, shape, _ELEMENTS)
            if not loop_guard.violations:
                break
        found += [f"{shape.name}: {each}" for each in loop_guard.violations]
    loop_guard.violations[:] = found


async def _send(address: str, shape: Shape, elements: int) -> None:
    client = await RawClient.connect(address)
    await client.send_bytes(client.frame(shape.request(elements), 1))
    async with asyncio.timeout(60):
        with suppress(ConnectionError, asyncio.IncompleteReadError):  # it may be refused
            await client.receive_frame()
    await client.close()
