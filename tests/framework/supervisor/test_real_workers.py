"""Real workers under a supervisor: what its one address says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiohttp
import anyio
import msgspec
import pytest

from kmr.broker.client import BatchProducer
from kmr.observe.status import WorkerStatus
from kmr.settings import Settings
from kmr.supervisor.supervisor import Supervisor

if TYPE_CHECKING:
    from pathlib import Path

    from kmr.testing import StartBroker

pytestmark = pytest.mark.slow

FLOW = """
from kmr import Strategy
from kmr.sinks import StreamWriter

def keep(record):
    return {"value": record.value}

strategy = Strategy(map=keep, reduce=StreamWriter("out.json", max_rows=1))
"""


async def test_status_metrics_and_liveness_of_real_workers_are_at_one_address(
    start_broker: StartBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    monkeypatch.chdir(tmp_path)
    broker = await start_broker(default_partitions=2)
    async with BatchProducer(broker.bootstrap_servers, "t") as producer:
        await producer.send([b"x"] * 10)
    flags: dict[str, object] = {
        "strategy": "flow:strategy",
        "topics": "t",
        "group": "g",
        "workers": 2,
        "bootstrap_servers": broker.bootstrap_servers,
        "http.port": 0,
    }
    supervisor = Supervisor(Settings.load(flags=flags), None, flags)
    with anyio.fail_after(90):
        async with anyio.create_task_group() as tasks, aiohttp.ClientSession() as session:
            tasks.start_soon(supervisor.run)
            while True:
                await anyio.sleep(0.05)
                if supervisor.url is None:
                    continue
                async with session.get(f"{supervisor.url}/status") as answer:
                    status = msgspec.json.decode(await answer.read(), type=WorkerStatus)
                states = [worker.state for worker in status.workers]
                if status.ready and status.settled == 10 and states == ["running", "running"]:
                    break
            assert status.live
            async with session.get(f"{supervisor.url}/live") as answer:
                assert answer.status == 200
            async with session.get(f"{supervisor.url}/metrics") as answer:
                lines = (await answer.text()).splitlines()
            supervisor.shutdown("the test is over")
    settled = [line for line in lines if line.startswith("kmr_settled_records_total{")]
    assert sum(float(line.rpartition(" ")[2]) for line in settled) == 10
    assert {'kmr_worker_up{worker="0"} 1.0', 'kmr_worker_up{worker="1"} 1.0'} <= set(lines)
