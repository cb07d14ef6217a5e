"""Figures for Prometheus: what a scrape says of a stream, and that its cost does not grow with history."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from grown_history import GrownHistory
from ledgered_stream import Stream
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Engine, event

from include.audit.run import AuditOutcome, outcome_file
from include.declare.dataset import snapshot_dataset
from include.ground import delta_log
from include.ground.ports import free_ports
from include.ground.settings import CLONE, Settings
from include.observe.alerts import state_key
from include.observe.metrics import FIGURES, HeadraceCollector, WatermarkFigures
from include.observe.watermark import PartitionState, PartitionTime, WatermarkStatus

NOW = datetime(2026, 6, 1, tzinfo=UTC)


@dataclass
class Scrapes:
    """A state folder with flights, and its collector."""

    settings: Settings
    history: GrownHistory
    collector: HeadraceCollector

    def figures(self) -> dict[str, float]:
        samples = [sample for family in self.collector.collect() for sample in family.samples]
        return {
            state_key(sample.name, {k: v for k, v in sample.labels.items() if k != "release"}): sample.value
            for sample in samples
        }


@pytest.fixture
def scrapes(settings: Settings) -> Scrapes:
    snapshot_dataset(settings, "flights")
    history = GrownHistory(settings)
    for _ in range(3):
        history.add_batch()
    return Scrapes(settings, history, HeadraceCollector(settings))


def test_scrape_says_what_a_stream_has_published(scrapes: Scrapes) -> None:
    outcome = AuditOutcome("flights", NOW, "r", 2, balanced=False, findings=1, unchecked=0, first="a record is lost")
    outcome_file(scrapes.settings, "flights").write(outcome)
    found = scrapes.figures()
    assert found["headrace_published_batch{dataset=flights}"] == 2
    assert found["headrace_rows{dataset=flights,table=bronze}"] == scrapes.history.release.writer.bronze.rows
    assert 0 <= found["headrace_freshness_seconds{dataset=flights}"] < 60
    assert found["headrace_audit_balanced{dataset=flights}"] == 0
    assert found["headrace_table_files{dataset=flights,table=silver.flights}"] == 3
    assert found["headrace_table_bytes{dataset=flights,table=silver.flights}"] > 0
    assert found["headrace_table_version{dataset=flights,table=silver.flights}"] == 3
    assert found["headrace_process_up{process=broker}"] == 0
    assert 0 < found["headrace_disk_free_share{}"] < 1


def test_exposition_is_readable_by_prometheus_and_repeats_no_series(scrapes: Scrapes) -> None:
    registry = CollectorRegistry()
    registry.register(scrapes.collector)
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    assert {f"headrace_{each.name}" for each in FIGURES} <= {family.name for family in families}
    series = Counter((sample.name, *sorted(sample.labels.items())) for family in families for sample in family.samples)
    assert series
    assert max(series.values()) == 1


def test_unknown_figures_are_left_out_and_counted(settings: Settings) -> None:
    Stream(settings).run(0, 0)
    found = Scrapes(settings, None, HeadraceCollector(settings)).figures()  # type: ignore[arg-type]
    assert found["headrace_unknown_figures{}"] > 0
    assert "headrace_lag_records{dataset=flights}" not in found


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts commits read and hundreds of steps of SQLite's virtual machine."""
    counts: Counter[str] = Counter()
    read = delta_log.read_commit

    def counted(*arguments: Any) -> Any:
        counts["commits"] += 1
        return read(*arguments)

    def step() -> int:
        counts["SQL"] += 1
        return 0

    def watch(connection: Any, _: object) -> None:
        connection.set_progress_handler(step, 100)

    monkeypatch.setattr(delta_log, "read_commit", counted)
    event.listen(Engine, "connect", watch)
    yield counts
    event.remove(Engine, "connect", watch)


def test_scrape_after_five_times_the_history_does_the_same_work(work: Counter[str], settings: Settings) -> None:
    snapshot_dataset(settings, "flights")
    history = GrownHistory(settings)
    scrapes = Scrapes(settings, history, HeadraceCollector(settings))
    found = []
    for batches in (25, 125):
        while history.batches < batches:
            history.add_batch(published=history.batches == batches - 1)
        scrapes.figures()
        work.clear()
        scrapes.figures()
        found.append(dict(work))
    assert found[0]["SQL"] > 0
    assert {name: count for name, count in found[1].items() if count > 1.2 * found[0].get(name, 0) + 2} == {}


def test_watermark_is_stuck_while_batches_pass_it() -> None:
    figures = WatermarkFigures("r", 5, NOW, NOW, NOW)
    hours = [NOW + timedelta(hours=number) for number in range(6)]

    def observed(batch: int, at: datetime, *latest: datetime) -> float:
        waiting = PartitionState.WAITING
        partitions = tuple(PartitionTime(n, each, waiting, None, each == min(latest)) for n, each in enumerate(latest))
        figures.observe(batch, WatermarkStatus(min(latest), None, partitions, ()), at)
        return figures.held_seconds

    ahead = NOW + timedelta(days=1)
    assert observed(5, hours[1], NOW, ahead) == 0, "no batch came"
    assert observed(6, hours[2], NOW, ahead) == 7200
    assert observed(6, hours[3], NOW, ahead) == 7200, "and none comes"
    assert observed(7, hours[4], NOW, NOW) == 0, "no partition is ahead"
    assert observed(8, hours[5], hours[1], ahead) == 0, "it moved"


def test_endpoint_answers_scrapes_until_it_is_ended(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    environment = {**os.environ, "HEADRACE_STATE": str(tmp_path / "state")}
    command = [sys.executable, "-m", "include.observe.metrics", "127.0.0.1", str(port)]
    process = subprocess.Popen(command, cwd=CLONE, env=environment)
    try:
        for _ in range(300):
            try:
                text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
                break
            except OSError:
                time.sleep(0.2)
        assert "headrace_process_up" in text
    finally:
        process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_tables_that_were_not_checked_are_no_unbalanced_audit(scrapes: Scrapes) -> None:
    outcome = AuditOutcome("flights", NOW, "r", 1, balanced=False, findings=0, unchecked=1, first="gold.x not checked")
    outcome_file(scrapes.settings, "flights").write(outcome)
    figures = scrapes.figures()
    assert figures["headrace_audit_balanced{dataset=flights}"] == 1.0
    assert figures["headrace_stalled_seconds{dataset=flights}"] == 0.0
