"""Small files put together, old ones removed: the same rows, for who reads on and for what comes after."""

from __future__ import annotations

import json
import os
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from histories import History, copy_of
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession
from small_release import Record, SmallRelease, small_release

from include.catalog.history_slice import BRONZE, Slice, Span
from include.clients.delta_log import commits
from include.ledger.ledger_rebuild import rebuild
from include.reading import pinned
from include.settings import Settings
from spark_jobs.engine import refine as refining
from spark_jobs.engine.compact_tables import CompactionSize, compact_tables, small_groups, tables_to_compact
from spark_jobs.storage.data_files import HIVE_NULL, DataFile
from spark_jobs.storage.delta_table import CompactedRowsDiffer, Table
from spark_jobs.storage.failpoints import Step

METER = Path(__file__).parents[1] / "recovery" / "datasets" / "meter"
EVERYTHING = Slice([Span(0, 0, 10_000, BRONZE), Span(1, 0, 10_000, BRONZE)])
EARLY = CompactionSize(min_files=3)
LONG_AGO = timedelta(days=8)


def reading(minute: int, litres: int | str) -> Record:
    said = {"event_id": f"e{minute}", "device": f"d{minute % 2}", "litres": litres}
    return Record(json.dumps(said | {"read_at": f"2024-02-{10 + minute // 4:02}T10:{minute:02}:00Z"}).encode())


def doubled(folder: Path) -> None:
    path = folder / "silver.py"
    path.write_text(
        path.read_text().replace("return accepted", 'return accepted.withColumn("litres", accepted.litres * 2)')
    )


@pytest.fixture(scope="module")
def production(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallRelease:
    """Five batches, a file of each in every table; bronze has the last three on one day."""
    place = tmp_path_factory.mktemp("maintenance")
    shutil.copytree(METER, place / "meter", ignore=shutil.ignore_patterns("__pycache__"))
    release = small_release(spark, Settings(state=place / "production"), "meter", place / "meter")
    for batch in range(5):
        release.take([reading(4 * batch, batch), reading(4 * batch + 1, 7), reading(4 * batch + 2, "seven")])
    return release


@pytest.fixture
def told(production: SmallRelease, tmp_path: Path) -> History:
    """The production in a place of the test's own."""
    return History(copy_of(production, tmp_path / "production"), tmp_path)


def everything(release: SmallRelease) -> dict[str, pl.DataFrame]:
    reading = pinned(release.settings)
    return {name: sorted_rows(reading.read(name).collect()) for name in reading.tables}


def sorted_rows(frame: pl.DataFrame) -> pl.DataFrame:
    order = [name for name in frame.columns if not isinstance(frame.schema[name], pl.List)]
    return frame.sort(order)


def at_their_heads(release: SmallRelease) -> dict[str, pl.DataFrame]:
    """Every table as its owner has it, which readers see with the next publication only."""
    tables = [table for table, _ in tables_to_compact([release.release])]
    return {t.spec.name: sorted_rows(pl.read_delta(str(t.spec.path))) for t in tables}


def refuse_other_rows(after: dict[str, pl.DataFrame], before: dict[str, pl.DataFrame]) -> None:
    assert set(after) == set(before)
    for name, rows in before.items():
        assert_frame_equal(after[name], rows, check_column_order=False)


def aged(release: SmallRelease) -> None:
    """Let everything in the tables be eight days old, for the file system and for the logs."""
    for path in (release.settings.state / "warehouse").rglob("*"):
        if path.suffix == ".parquet":
            then = path.stat().st_mtime - LONG_AGO.total_seconds()
            os.utime(path, (then, then))


def test_the_same_rows_in_fewer_files(told: History) -> None:
    release, spark = told.production, told.production.spark
    before = everything(release)
    done = compact_tables(release.settings, spark, [release.release], 600, EARLY)
    assert {facts["left"] for facts in done.values()} == {0}
    fewer = {table for table, facts in done.items() if facts["now"] < facts["files"]}
    assert any(table.endswith("/rejected") for table in fewer)
    assert any("/gold/" in table for table in fewer)
    assert not any(table.endswith(("/silver", "/bronze")) for table in fewer), "plans find batches by their files"
    refuse_other_rows(everything(release), before)
    refuse_other_rows(at_their_heads(release), before)

    # Whoever opens the tables anew finds them so, and the next batch is written and read as ever.
    release.restart()
    release.take([reading(40, 5), reading(41, "five")])
    assert release.silver().height == before["silver.meter"].height + 1
    twice = compact_tables(release.settings, spark, [release.release], 600, EARLY)
    assert all(twice[table]["files"] <= done[table]["now"] + 1 for table in fewer)
    assert not any(told.redo(EVERYTHING)[2].values()), "done again it is the same"
    correction, _, differing = told.redo(EVERYTHING, doubled)
    told.apply(correction)
    assert differing["silver.meter"] > 0
    assert release.silver()["litres"].sum() == 2 * (before["silver.meter"]["litres"].sum() + 5)
    rebuild(release.settings)


def test_who_follows_the_changes_of_a_table_sees_none(told: History) -> None:
    table = told.production.release.writer.rejected
    version = table.version
    compact_tables(told.production.settings, told.production.spark, [told.production.release], 600, EARLY)
    log = table.spec.path / "_delta_log"
    actions = [json.loads(line) for line in (log / f"{version + 1:020}.json").read_text().splitlines()]
    changes = [action[kind]["dataChange"] for action in actions for kind in ("add", "remove") if kind in action]
    assert changes
    assert not any(changes)
    assert all(commit.metadata is None for commit in commits(table.spec.path, version))


def test_what_is_published_stays_readable_however_old(told: History, monkeypatch: pytest.MonkeyPatch) -> None:
    release = told.production
    before, settings = everything(release), release.settings
    table = release.release.writer.rejected
    now = vacuumed_after(monkeypatch, timedelta())
    aged(release)
    compact_tables(settings, release.spark, [release.release], 600, EARLY)
    assert now, "tables were vacuumed"
    # The publication names versions from before: their files are kept, those of earlier ones are not.
    refuse_other_rows(everything(release), before)
    refuse_other_rows(at_their_heads(release), before)
    release.take([reading(50, 1), reading(51, "one")])
    aged(release)
    done = compact_tables(settings, release.spark, [release.release], 600, EARLY)
    path = str(table.spec.path.relative_to(settings.state / "warehouse"))
    assert done[path]["removed"] > 0
    assert everything(release)["silver.meter"].height == before["silver.meter"].height + 1
    with pytest.raises(OSError, match="not found|No such file"):
        DeltaTable(str(table.spec.path), version=FIRST).to_pyarrow_table()


# Without the last batch: of its files two are put together with the last one.
FIRST = 4


def vacuumed_after(monkeypatch: pytest.MonkeyPatch, retention: timedelta) -> list[str]:
    """Have tables vacuumed with another retention; return the names of those that were."""
    found: list[str] = []

    original = Table.vacuum

    def vacuum(table: Table, keep_versions: list[int]) -> int:
        found.append(table.spec.name)
        return original(table, keep_versions, retention)

    monkeypatch.setattr(Table, "vacuum", vacuum)
    return found


def test_what_was_replaced_a_moment_ago_stays_for_a_week_however_old_its_files(told: History) -> None:
    release = told.production
    table = release.release.writer.rejected
    before = DeltaTable(str(table.spec.path), version=FIRST).to_pyarrow_table()
    aged(release)
    compact_tables(release.settings, release.spark, [release.release], 600, EARLY)
    release.take([reading(50, 1), reading(51, "one")])
    compact_tables(release.settings, release.spark, [release.release], 600, EARLY)
    assert len(table.files()) < 6
    assert DeltaTable(str(table.spec.path), version=FIRST).to_pyarrow_table().equals(before)


def test_what_never_committed_is_removed_when_it_is_old(told: History) -> None:
    release = told.production
    orphan = release.release.writer.silver.spec.path / "b00000099-feed" / "month=2024-02" / "part-0.parquet"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"half")
    young = compact_tables(release.settings, release.spark, [release.release], 600)
    assert orphan.exists()
    assert not any(facts["removed"] for facts in young.values())
    then = orphan.stat().st_mtime - LONG_AGO.total_seconds()
    os.utime(orphan, (then, then))
    compact_tables(release.settings, release.spark, [release.release], 600)
    assert not orphan.exists()


def test_a_run_that_is_half_done_keeps_its_files(told: History) -> None:
    release = told.production
    for minute in range(50, 53):
        release.ingest([reading(minute, 1)])
    tables = (release.release.writer.silver, release.release.writer.rejected)
    with pytest.raises(Died):
        dying_before_gold(release, 5, 7)
    assert release.begun() == (5, 7)
    known = [{file.path for file in table.files()} for table in tables]
    compact_tables(release.settings, release.spark, [release.release], 600, CompactionSize(min_files=2))
    assert [{file.path for file in table.files()} for table in tables] == known
    release.restart()
    release.refine(5, 7)
    assert release.silver().height == 13
    assert not any(told.redo(EVERYTHING)[2].values())


class Died(Exception):
    """The process is gone."""


def dying_before_gold(release: SmallRelease, first: int, last: int) -> None:
    def die(*_: object) -> None:
        raise Died

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refining, "pass_step", lambda step, *_: die() if step is Step.REJECTED_COMMITTED else None)
        release.refine(first, last)


def test_there_is_an_end_of_time(told: History) -> None:
    release = told.production
    before = everything(release)
    done = compact_tables(release.settings, release.spark, [release.release], 0, EARLY)
    assert sum(facts["left"] for facts in done.values()) > 0
    assert all(facts["now"] == facts["files"] for facts in done.values())
    refuse_other_rows(everything(release), before)
    refuse_other_rows(at_their_heads(release), before)


def test_rows_that_are_not_as_many_are_refused(told: History) -> None:
    silver = told.production.release.writer.silver
    version, files = silver.version, silver.files()
    with pytest.raises(CompactedRowsDiffer, match="nothing was committed"):
        silver.compact(files[:1], files[:2])
    assert silver.version == version


def file(name: str, size: int, batch: int, partition: Any = "2024-02") -> DataFile:
    return DataFile(name, partition, 1, size, {"_batch_id": batch}, {"_batch_id": batch})


def test_which_files_are_put_together() -> None:
    size = CompactionSize(small=10, target=12, min_files=3)
    small = [file(f"f{n}", 5, 9 - n) for n in range(5)]
    assert [[f.path for f in group] for group in small_groups(small, size)] == [["f0", "f1"], ["f2", "f3"]]
    few = CompactionSize(small=10, target=1000, min_files=3, max_files=2)
    assert [len(group) for group in small_groups(small, few)] == [2, 2]
    nowhere = [file(f"n{n}", 1, n, partition) for n, partition in enumerate([None, HIVE_NULL, None, HIVE_NULL])]
    assert [len(group) for group in small_groups(nowhere, size)] == [4], "null has two names"
    assert list(small_groups(small[:2], size)) == [], "they are few"
    assert list(small_groups([file(f"g{n}", 10, n) for n in range(9)], size)) == [], "they are large"
    apart = [file(f"p{n}", 1, n, partition=f"2024-0{n}") for n in range(1, 6)]
    assert list(small_groups(apart, size)) == [], "each in a partition of its own"
