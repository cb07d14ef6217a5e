"""Ingest without a batch: hung, or with nothing to read."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from preflight_scene import Scene, open_scene

from include.ground.paths import reading_lock_path
from include.ground.settings import Settings
from include.state.lease import shared_lock
from spark_jobs.backends.backend import NeedsSpark
from spark_jobs.layers.gold_layer import GoldCommit, GoldUpdate, SilverPart
from spark_jobs.stream import ingest as ingest_module
from spark_jobs.stream import progress, refine
from spark_jobs.stream.ingest import Ingest
from spark_jobs.stream.progress import READABLE_AFTER, StatusReporter, has_records
from spark_jobs.tables.data_files import DataFile


@pytest.fixture
def scene(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(progress, "bootstrap_servers", lambda _: "broker")
    return open_scene(settings, monkeypatch)


def ingest_of(scene: Scene, ingested: dict[int, int]) -> Ingest:
    # No session: nothing is read.
    made = Ingest(None, scene.settings, scene.dataset, scene.bronze, scene.generation, 1, threading.Event())  # type: ignore[arg-type]
    made.ingested = ingested
    return made


def test_ingest_at_the_end_of_the_topic_has_no_records(scene: Scene) -> None:
    assert not has_records(ingest_of(scene, {0: 10, 1: 20}), {0: 10, 1: 20})
    assert has_records(ingest_of(scene, {0: 10, 1: 19}), {0: 10, 1: 20})
    assert has_records(ingest_of(scene, {}), {0: 1, 1: 0})


@pytest.mark.parametrize(("readable", "expected"), [(20, True), (19, False)])
def test_records_behind_an_open_transaction_are_not_waiting(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, readable: int, expected: bool
) -> None:
    monkeypatch.setattr(progress, "readable_end_offsets", lambda *_, **__: {0: 10, 1: readable})
    ingest = ingest_of(scene, {0: 10, 1: 19})
    ingest.progress = time.monotonic() - READABLE_AFTER - 1
    assert has_records(ingest, {0: 10, 1: 20}) is expected


def test_status_counts_the_merges_that_the_backend_left_to_spark(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Unable:
        def merge(self, *_: object) -> None:
            raise NeedsSpark("it has too many rows to merge at once")

    merged, table = list[object](), SimpleNamespace(spec=SimpleNamespace(name="gold.small"))
    release = SimpleNamespace(
        needed_spark=Counter(),
        refined_batch=2,
        backend=Unable(),
        writer=SimpleNamespace(dataset=SimpleNamespace(name="flights")),
    )
    update = GoldUpdate(late=SilverPart([DataFile("a.parquet", "", 1, 1)], 1, 1))
    monkeypatch.setattr(refine, "merge_by_spark", lambda *given: merged.append(given))
    target: Any = SimpleNamespace(table=table)
    for batch in (1, 2):
        refine._commit(release, GoldCommit(target, release.writer, update, "gold", batch, {}))  # type: ignore[arg-type]
    assert len(merged) == 2
    reporter = StatusReporter(tmp_path / "status.json", lambda: True)
    active: Any = SimpleNamespace(
        published=SimpleNamespace(release=release), all_releases=[SimpleNamespace(release=release)]
    )
    monkeypatch.setattr(progress, "log_end_offsets", lambda *_, **__: {})
    progress.refresh_progress(reporter, ingest_of(scene, {}), active)
    assert reporter.status.left_to_spark == {"it has too many rows to merge at once": 2}


def test_the_batch_after_a_small_one_is_planned_when_the_interval_is_over(scene: Scene) -> None:
    ingest = ingest_of(scene, {})
    ingest.settings = scene.settings.model_copy(update={"trigger_seconds": 0.3})
    began = time.monotonic()
    ingest.wait_for_next(1, began - 0.1)
    assert 0.2 <= time.monotonic() - began < 5
    ingest.stop.set()
    ingest.settings = scene.settings.model_copy(update={"trigger_seconds": 600.0})
    ingest.wait_for_next(2, time.monotonic())
    assert time.monotonic() - began < 10, "a drain does not wait for the interval"


def test_a_job_that_reads_the_dataset_lengthens_the_interval(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    ingest = ingest_of(scene, {})
    ingest.settings = scene.settings.model_copy(update={"trigger_seconds": 0.0})
    monkeypatch.setattr(ingest_module, "JOB_INTERVAL", 0.4)
    with shared_lock(reading_lock_path(ingest.settings, ingest.dataset.name)):
        began = time.monotonic()
        ingest.wait_for_next(1, began)
        assert 0.4 <= time.monotonic() - began < 5
    began = time.monotonic()
    ingest.wait_for_next(2, began)
    assert time.monotonic() - began < 0.4


def test_the_interval_ends_with_the_job(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    ingest = ingest_of(scene, {})
    ingest.settings = scene.settings.model_copy(update={"trigger_seconds": 0.0})
    monkeypatch.setattr(ingest_module, "JOB_INTERVAL", 600.0)
    with ThreadPoolExecutor(1) as pool:
        with shared_lock(reading_lock_path(ingest.settings, ingest.dataset.name)):
            waiting = pool.submit(ingest.wait_for_next, 1, time.monotonic())
            time.sleep(0.2)
            assert not waiting.done()
        waiting.result(10)


def test_a_lock_that_cannot_be_read_counts_as_no_job(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    ingest = ingest_of(scene, {})
    ingest.settings = scene.settings.model_copy(update={"trigger_seconds": 0.0})
    monkeypatch.setattr(ingest_module, "JOB_INTERVAL", 600.0)
    reading_lock_path(ingest.settings, ingest.dataset.name).mkdir(parents=True)
    began = time.monotonic()
    ingest.wait_for_next(1, began)
    assert time.monotonic() - began < 10
