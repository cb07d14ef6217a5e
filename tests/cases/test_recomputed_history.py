"""Deep audit: every planted difference between bronze and the published tables is found and named, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from compactable_release import EARLY, WHOLE_HISTORY, reading
from slice_patcher import SlicePatcher, copy_release, edited_dataset
from small_release import SmallRelease, small_release

from include.declare.history_slice import BRONZE, Slice, Span
from include.read.publication import publish, read_publication
from include.read.rejected_records import DISCARD, FIX, Decision, append_decisions
from include.state.release_files import PatchDirection
from spark_jobs.backends.local.duckdb_session import duckdb_session
from spark_jobs.backends.release import pinned_release, tables_of
from spark_jobs.history.recompute_history import Recomputed, recompute_history
from spark_jobs.stream.compaction import compact_tables
from spark_jobs.stream.refine import publication_of
from spark_jobs.tables.delta_table import Table

Found = dict[str, dict[str, int]]


def double_litres(folder: Path) -> None:
    path = folder / "silver.py"
    double = 'return accepted.withColumn("litres", accepted.litres * 2)'
    path.write_text(path.read_text().replace("return accepted", double))


def recomputed(release: SmallRelease) -> Recomputed:
    published = read_publication(release.settings, release.dataset.name)
    versions = {name: table.version for name, table in published.tables.items()}
    pinned = pinned_release(release.spark, release.settings, release.dataset, versions)
    # Slices of one or two batches.
    settings = release.settings.model_copy(update={"refine_records": 3})
    return recompute_history(settings, pinned, published.batch, release.settings.state / "deep")


def differing(release: SmallRelease) -> Found:
    return {each.table: each.counts for each in recomputed(release).differences if each.counts}


def rewrite(release: SmallRelease, table: Table, sql: str) -> None:
    """Replace a table's rows by the result of a query over them, in files with right checksums, and publish."""
    files = table.files()
    with duckdb_session() as duck:
        duck.view_files("rows", [table.spec.path / file.path for file in files], table.spec.data_schema)
        time = release.dataset.pipeline.event_time
        partition = {"silver": f"strftime({time}, '%Y-%m')", "rejected": "strftime(first_seen, '%Y-%m')"}
        month = partition.get(table.spec.name.split(".")[0], "'2024-02'")
        added = duck.write(f'select *, {month} as "{table.spec.partition}" from ({sql})', table, "tampered")
    table.commit("tampering", release.batches, {}, added, files)
    publish_heads(release)


def publish_heads(release: SmallRelease) -> None:
    """Publish the newest version of each table."""
    published, tables = publication_of(release.settings, release.release, release.refined()), {}
    for table in tables_of([release.release]):
        tables[table.spec.name] = replace(published.tables[table.spec.name], version=table.version)
    publish(release.settings, replace(published, tables=tables))


@pytest.fixture(scope="module")
def duplicated(compactable: SmallRelease, tmp_path_factory: pytest.TempPathFactory) -> SmallRelease:
    """Return the release with duplicates of two slices."""
    release = copy_release(compactable, tmp_path_factory.mktemp("duplicates") / "production")
    release.take([reading(5, 9), reading(0, 1), reading(60, 60)])
    return release


@pytest.fixture
def release(duplicated: SmallRelease, tmp_path: Path) -> SmallRelease:
    return copy_release(duplicated, tmp_path / "production")


# A row changed, one with another identity, one of an unknown batch, one twice; one removed, with a later duplicate.
DAMAGED = """
select * exclude (event_id, litres, _batch_id),
    if(event_id = 'e12', 'x12', event_id) as event_id,
    if(event_id = 'e5', 8, litres) as litres,
    if(event_id = 'e13', 77, _batch_id) as _batch_id
from (select * from rows union all select * from rows where event_id = 'e16')
where event_id <> 'e0'
"""
OTHER_REASON = "select * replace (if(_offset = 102, reasons[:0], reasons) as reasons) from rows"
MORE_LITRES = "select * replace (litres + (hour = '2024-02-10T10:00:00Z')::int as litres) from rows where device = 'd1'"


def test_unchanged_tables_are_equal(release: SmallRelease) -> None:
    found = recomputed(release)
    assert (found.records, found.first, [each.counts for each in found.differences]) == (18, 0, [{}] * 5)
    assert not (release.settings.state / "deep").exists()


def test_every_wrong_row_is_named(release: SmallRelease) -> None:
    opened = release.release
    rewrite(release, opened.writer.silver, DAMAGED)
    rewrite(release, opened.writer.rejected, OTHER_REASON)
    rewrite(release, opened.gold[0].table, MORE_LITRES)
    found = {each.table: each for each in recomputed(release).differences}
    assert {name: each.counts for name, each in found.items() if each.counts} == {
        "silver.meter": {"different": 3, "surplus": 1, "missing": 1},
        "rejected.meter": {"different": 1},
        "gold.meter_hours": {"different": 1, "missing": 5},
    }
    named = {(row.kind, row.label): row for row in found["silver.meter"].samples}
    changed = named["different", "event_id=e5"]
    assert (changed.partition, changed.offset, changed.values) == (0, 104, {"litres": ("8", "7")})
    assert named["different", "event_id=x12"].values == {"event_id": ("x12", "e12")}
    assert named["different", "event_id=e13"].values == {"_batch_id": ("77", "3")}
    assert ("surplus", "event_id=e16") in named
    assert ("missing", "event_id=e0") in named
    assert found["silver.meter"].batches == (0, 5)
    assert set(found["rejected.meter"].samples[0].values) == {"reasons"}
    assert found["gold.meter_hours"].samples[0].values.keys() == {"litres"}


@pytest.mark.extended
def test_replay_repairs_the_rows_that_the_audit_found(release: SmallRelease, tmp_path: Path) -> None:
    patcher = SlicePatcher(release, tmp_path)
    rewrite(release, release.release.writer.silver, DAMAGED)
    rewrite(release, release.release.gold[0].table, MORE_LITRES)
    patch, _, _ = patcher.rebuild(WHOLE_HISTORY)
    patcher.apply(patch)
    publish_heads(release)
    assert differing(release) == {}
    patcher.apply(replace(patch, direction=PatchDirection.REVERT))
    publish_heads(release)
    assert differing(release)["silver.meter"] == {"different": 3, "surplus": 1, "missing": 1}


@pytest.mark.extended
def test_compacted_tables_and_other_releases_are_equal(release: SmallRelease, tmp_path: Path) -> None:
    compact_tables(release.settings, [release.release], 600, EARLY)
    publish_heads(release)
    assert differing(release) == {}
    folder = edited_dataset(tmp_path, double_litres, release.dataset.folder)
    other = small_release(release.spark, release.settings, "meter", folder)
    other.refine(0, 5)
    assert differing(other) == {}


@pytest.mark.extended
def test_decisions_take_effect_once_the_record_is_validated_again(release: SmallRelease, tmp_path: Path) -> None:
    now = datetime(2026, 12, 1, tzinfo=UTC)
    fixed = reading(2, 2).value
    decisions = [Decision(FIX, 0, 102, 0, now, "me", "", fixed), Decision(DISCARD, 0, 105, 1, now, "me", "")]
    append_decisions(release.settings, "meter", decisions)
    assert differing(release) == {}, "neither has acted"
    patcher = SlicePatcher(release, tmp_path)
    patch, _, rows = patcher.rebuild(Slice([Span(0, 102, 103, BRONZE)]))
    assert rows["silver.meter"] == 1
    patcher.apply(patch)
    assert "e2" in release.silver()["event_id"]
    assert differing(release) == {}, "the fix has acted"
    patcher.apply(replace(patch, direction=PatchDirection.REVERT))
    assert differing(release) == {}, "the fix is reverted"
