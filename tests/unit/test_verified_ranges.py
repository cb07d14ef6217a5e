"""Verified ranges in the ledger never include a range that was patched afterwards."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from ledgered_stream import RELEASE, Stream
from sqlalchemy import Connection

from include.declare.dataset import load_dataset
from include.declare.reference_tables import create_reference_tables
from include.ground.paths import bronze_path, checkpoint_path, reference_path, verified_path
from include.ground.settings import CLONE, Settings
from include.observe import ledger_writer
from include.observe.ledger_reader import open_reader
from include.observe.ledger_writer import open_writer, project_dataset
from include.read.published_tables import first_batch_since
from spark_jobs.layers.bronze import bronze_spec
from spark_jobs.stream.ingest import Ingest
from spark_jobs.tables.checkpoint import Generation
from spark_jobs.tables.delta_table import Table


def verified(settings: Settings) -> list[int]:
    project_dataset(open_writer(settings), settings, "flights")
    return [one.batch for one in open_reader(settings).event_times("flights", RELEASE)[1]]


def read_now(settings: Settings, plan: str, batch: int) -> None:
    """A backfill has read the tables at `batch` and found them equal."""
    path = verified_path(settings, "flights", RELEASE, plan)
    path.parent.mkdir(parents=True, exist_ok=True)
    verification = {"plan": plan, "batch": batch, "verified_at_ms": int(time.time() * 1000)}
    path.write_text(json.dumps(verification | {"since": "2013-01-01T00:00:00Z", "until": "2013-01-02T00:00:00Z"}))
    time.sleep(0.01)


def test_patch_at_the_same_batch_revokes_the_verification(settings: Settings) -> None:
    stream = Stream(settings)
    stream.run(0, 1)
    stream.correct("backfill-flights-1", 1)
    time.sleep(0.01)
    read_now(settings, "backfill-flights-2", 1)
    assert verified(settings) == [1]
    stream.correct("backfill-flights-3", 1)
    assert verified(settings) == [0]


def test_verifications_are_read_again_only_after_a_change(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = ledger_writer.verified_file
    monkeypatch.setattr(ledger_writer, "verified_file", lambda path: read.append(path.stem) or real(path))
    stream, writer = Stream(settings), open_writer(settings)
    for number in range(2):
        read_now(settings, f"backfill-flights-{number}", number)
    folder = verified_path(settings, "flights", RELEASE, "any").parent
    os.utime(folder, (1, 1))
    for batch in range(3):
        stream.run(batch, batch)
        project_dataset(writer, settings, "flights")
    assert read == ["backfill-flights-0", "backfill-flights-1"]
    read_now(settings, "backfill-flights-2", 2)
    project_dataset(writer, settings, "flights")
    assert read[2:] == ["backfill-flights-0", "backfill-flights-1", "backfill-flights-2"]


def test_verifications_are_read_again_after_a_failed_transaction(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    Stream(settings).run(0, 0)
    read_now(settings, "backfill-flights-1", 0)
    os.utime(verified_path(settings, "flights", RELEASE, "any").parent, (1, 1))
    writer = open_writer(settings)

    def fail(*_: object) -> int:
        raise OSError("disk full")

    with monkeypatch.context() as failing:
        failing.setattr(ledger_writer, "insert_publications", fail)
        with pytest.raises(OSError, match="disk full"):
            project_dataset(writer, settings, "flights")
    project_dataset(writer, settings, "flights")
    assert [one.plan for one in open_reader(settings).event_times("flights", RELEASE)[1]] == ["backfill-flights-1"]


def test_release_that_is_not_advanced_costs_no_bronze_rows(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    versions: list[int] = []
    real = ledger_writer._bronze_versions

    def counted(connection: Connection, dataset: str, of: Sequence[int]) -> dict[int, int]:
        found = real(connection, dataset, of)
        versions.append(len(found))
        return found

    monkeypatch.setattr(ledger_writer, "_bronze_versions", counted)
    former, writer = Stream(settings), open_writer(settings)
    former.run(0, 0)
    project_dataset(writer, settings, "flights")
    current = Stream(settings, release="0123456789ab")
    current.refine(0, 0)
    for batch in range(1, 6):
        current.run(batch, batch)
        project_dataset(writer, settings, "flights")
    assert versions == [1, 2, 1, 1, 1, 1]


@pytest.mark.parametrize(("after_ms", "batch"), [(0, 0), (999, 0), (1_000, 1), (1_001, 2), (1_002, None)])
def test_first_batch_since_a_kafka_time_is_found(settings: Settings, after_ms: int, batch: int | None) -> None:
    stream = Stream(settings)
    for number in range(3):
        stream.bronze(number)
    since = datetime.fromtimestamp((1_700_000_000_000 + after_ms) / 1000, UTC)
    assert first_batch_since(bronze_path(settings, "flights"), since) == batch


def test_ingest_records_the_current_reference_versions(settings: Settings) -> None:
    flights = load_dataset("flights", CLONE / "include" / "datasets" / "flights")
    create_reference_tables(settings, flights)
    assert reference_path(settings, "flights", "planes").is_dir()
    generation = Generation(1, 0, {0: 0}, "flights", "topic-1", "bronze-1")
    folder = generation.checkpoint(checkpoint_path(settings, "flights"))
    folder.mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": "q"}))
    bronze = Table(bronze_spec(settings, "flights"))
    # No session: what a batch's commit says needs none.
    ingest = Ingest(None, settings, flights, bronze, generation, 1, threading.Event())  # type: ignore[arg-type]
    assert ingest._facts()["reference"] == {"airlines": 0, "airports": 0, "planes": 0}
