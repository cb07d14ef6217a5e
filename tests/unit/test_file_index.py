"""Files are found by batch as a pass over all files finds them, and a run does not pass over the others."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from include.ground.delta_log import batch_commit
from include.ground.settings import Settings
from spark_jobs.layers.bronze import bronze_spec
from spark_jobs.stream.progress import lag_seconds
from spark_jobs.tables.data_files import BATCH, Bounds, DataFile
from spark_jobs.tables.delta_table import FileIndex, Table

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FUTURE = datetime(9999, 12, 30, tzinfo=UTC)


def file(path: str, first: int, last: int, rows: int = 1, low: Bounds | None = None) -> DataFile:
    return DataFile(path, "2026-01-01", rows, 100, {BATCH: first, **(low or {})}, {BATCH: last})


@pytest.mark.parametrize("seed", range(5))
def test_files_of_batches_equal_a_pass_over_all_files(seed: int) -> None:
    chance = random.Random(seed)
    expected: dict[str, DataFile] = {}
    index = FileIndex([])
    for _ in range(300):
        name, first = f"f{chance.randrange(40)}", chance.randrange(50)
        if chance.random() < 0.3:
            index.remove(name)
            expected.pop(name, None)
        else:
            known = file(name, first, first + chance.randrange(9), chance.randrange(99))
            added = known if chance.random() < 0.9 else DataFile(name, "2026-01-01", 5, 1)
            index.add(added)
            expected[name] = added
        low = chance.randrange(60)
        bounds = low, low + chance.randrange(20)
        found = {each.path for each in index.of_batches(*bounds)}
        assert found == {path for path, each in expected.items() if each.overlaps(BATCH, *bounds)}
        assert index.rows == sum(each.rows for each in expected.values())
        assert (len(index), {each.path for each in index}) == (len(expected), set(expected))


def test_newest_batches_are_found_without_a_look_at_older_files(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    overlaps = DataFile.overlaps

    def noted(self: DataFile, *bounds: Any) -> bool:
        looks.append(self.path)
        return overlaps(self, *bounds)

    monkeypatch.setattr(DataFile, "overlaps", noted)
    for files in (50, 500):
        index = FileIndex(file(f"f{number}", number, number) for number in range(files))
        looks.clear()
        assert [each.path for each in index.of_batches(files - 3, files)] == [f"f{files - n}" for n in (3, 2, 1)]
        assert len(looks) == 3


def test_lag_is_the_age_of_the_oldest_record_that_is_not_published(settings: Settings) -> None:
    bronze = Table(bronze_spec(settings, "flights"))
    for batch, minute in enumerate((1, 7, 5, 9)):
        low = {"timestamp": NOON + timedelta(minutes=minute)}
        bronze.commit("app", batch, {}, [file(f"b{batch}/_date=2026-01-01/part.parquet", batch, batch, low=low)])
    ingest: Any = SimpleNamespace(bronze=bronze, ingested={0: 10})
    now = (NOON + timedelta(minutes=10)).timestamp()
    assert [lag_seconds(ingest, refined, {0: 10}, now) for refined in (-1, 0, 1, 2, 3)] == [540, 300, 300, 60, 0]
    assert lag_seconds(ingest, 3, {0: 11}, now) is None


@pytest.mark.parametrize("time", [datetime(1, 1, 1, tzinfo=UTC), datetime(1970, 1, 20, tzinfo=UTC), None, FUTURE])
@pytest.mark.parametrize("bound", ["low", "high"])
def test_lag_of_a_record_with_a_time_that_is_no_arrival_is_the_age_of_its_commit(
    settings: Settings, time: datetime | None, bound: str
) -> None:
    bronze = Table(bronze_spec(settings, "flights"))
    for batch in range(3):
        bounds = {"timestamp": time} if time else {}
        known = DataFile(f"b{batch}/_date=2026-01-01/p.parquet", "2026-01-01", 1, 100, {BATCH: batch}, {BATCH: batch})
        added = replace(known, **{bound: {BATCH: batch, **bounds}})
        bronze.commit("app", batch, {"app_id": "app", "batches": [batch, batch]}, [added])
    ingest: Any = SimpleNamespace(bronze=bronze, ingested={0: 10})
    committed = [batch_commit(bronze.spec.path, batch).timestamp_ms / 1000 for batch in range(3)]
    now = committed[2] + 60
    lags = [lag_seconds(ingest, refined, {0: 10}, now) for refined in (-1, 0, 1, 2)]
    assert lags == [*(pytest.approx(now - each, abs=0.002) for each in committed), 0]
