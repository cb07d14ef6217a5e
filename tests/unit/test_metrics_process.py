"""The endpoint for Prometheus as a process: the runner starts it when a setting says so, and ends it."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from stand_ins import StandIns, runner_with

from include.ground.paths import log_path
from include.ground.ports import free_ports
from include.ground.settings import Settings
from include.observe.metrics import metrics_application
from include.observe.processes import observe_process
from include.state.process_states import METRICS, ProcessState
from include.state.run_files import read_run_file


@pytest.fixture
def site(two_datasets: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIns]:
    """A runner in this process that keeps a real endpoint, with stand-ins for the rest."""
    (port,) = free_ports(1)
    with runner_with(two_datasets, monkeypatch, console="off", metrics=str(port)) as found:
        yield found


def test_endpoint_runs_at_its_port_and_ends_with_the_runner(site: StandIns) -> None:
    def works() -> bool:
        return observe_process(site.settings, METRICS).state is ProcessState.RUNNING

    site.until(works, log_path(site.settings, METRICS).name, within=60)
    run = read_run_file(site.settings, METRICS)
    assert run is not None
    assert run.extra["port"] == int(site.settings.metrics)
    with urllib.request.urlopen(str(run.extra["page"])) as answer:
        assert b'headrace_process_up{process="metrics"} 1.0' in answer.read()
    site.runner.stopping = True
    site.until(lambda: site.step() and not run.is_alive(), "it ends with the runner")
    assert read_run_file(site.settings, METRICS) is None


def test_requests_that_come_during_a_scrape_share_its_result() -> None:
    """Clients of a network that leave at once would queue a full scrape each."""
    scrapes, go = list[int](), threading.Event()

    class Slow(Collector):
        def describe(self) -> list[Metric]:
            return []

        def collect(self) -> list[Metric]:
            scrapes.append(1)
            go.wait(5)
            return []

    registry = CollectorRegistry()
    registry.register(Slow())
    answer = metrics_application(registry)
    sent = list[dict[str, Any]]()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def ask() -> None:
        asked = [asyncio.create_task(answer({"type": "http", "headers": []}, None, send)) for _ in range(20)]
        await asyncio.sleep(0.1)
        go.set()
        await asyncio.gather(*asked)
        await answer({"type": "http", "headers": []}, None, send)

    asyncio.run(ask())
    assert (len(scrapes), len(sent)) == (2, 42)
