"""Old batches expire as declared: the audit, plans, totals and identities know what is gone, and nothing else goes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
import small_release as small_release_module
from compactable_release import EARLY, METER, head_rows, reading
from error_codes import raises
from pyspark.sql import SparkSession
from slice_patcher import SlicePatcher, copy_release
from small_release import ARRIVED, SmallRelease, small_release

from include.audit.balance import DatasetAudit, dataset_audit
from include.audit.kafka import Topic
from include.audit.kafka_comparison import AuditInput
from include.audit.loaded_files import loaded_files
from include.change.plan_parameters import BackfillParameters, ReleaseParameters, ReplayParameters
from include.change.recompute import BackfillPlan, ReplayPlan
from include.change.release import ReleasePlan
from include.declare.history_slice import BRONZE, Slice, Span
from include.ground.errors import Terminal
from include.ground.paths import snapshot_path
from include.ground.settings import Settings
from include.observe.ledger_reader import open_reader
from include.observe.ledger_writer import rebuild
from include.read.publication import publish, read_publication, tables_of
from include.read.published_tables import PinnedTables, first_unexpired_batch
from spark_jobs.backends.local.backend import adopted
from spark_jobs.backends.release import pinned_release
from spark_jobs.history.recompute_history import recompute_history
from spark_jobs.stream import expiry
from spark_jobs.stream.active_releases import refuse_incomplete
from spark_jobs.stream.compaction import compact_tables
from spark_jobs.stream.expiry import Expired, _first_younger, expire_batches
from spark_jobs.stream.refine import publication_of
from spark_jobs.tables.delta_table import RowsUnaccounted
from spark_jobs.tables.failpoints import Step, step_listeners

LATER = ARRIVED + timedelta(days=2_000)
"""When the batches from the fourth on arrive: all before are older than retention.silver then."""
NOW = LATER + timedelta(minutes=1)
WITHOUT_TWO = LATER - ARRIVED + timedelta(seconds=25)
"""An age at which only the first two batches expire: the last one arrived 35 seconds after LATER."""


def declared(folder: Path, ages: str) -> Path:
    """Return a copy of the dataset with these ages, a bound of late records, and no query table."""
    copy = folder / "meter"
    shutil.copytree(METER, copy, ignore=shutil.ignore_patterns("__pycache__", "gold"))
    pipeline, contract = copy / "pipeline.yaml", copy / "contract.yaml"
    text = pipeline.read_text()
    pipeline.write_text(text[: text.index("  meter_peaks:")] + f"\nretention: {{{ages}}}\n")
    bound = "customProperties: [{property: past, value: 1100 days}]"
    text = contract.read_text()
    minimum = 'logicalTypeOptions: {minimum: "1970-01-01T00:00:00Z"}'
    assert minimum in text
    contract.write_text(text.replace(minimum, f"{minimum}\n        {bound}"))
    return copy


@pytest.fixture(scope="module")
def aged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallRelease:
    """Return a release of six batches, the last three much later; batches 2 and 4 have duplicates of batch 1."""
    folder = tmp_path_factory.mktemp("aged")
    release = small_release(spark, Settings(state=folder / "state"), "meter", declared(folder, "silver: 1200 days"))
    shutil.copytree(release.dataset.folder, snapshot_path(release.settings, "meter", release.dataset.release))
    with pytest.MonkeyPatch.context() as patch:
        for batch in range(6):
            if batch == 3:
                patch.setattr(small_release_module, "ARRIVED", LATER)
            years = 0 if batch < 3 else 8
            copies = [dated(reading(5, 7), 0)] if batch == 2 else []
            release.take([*[dated(reading(4 * batch + n, 7), years) for n in range(3)], reading(60, "no"), *copies])
    return release


def dated(record: small_release_module.Record, years: int) -> small_release_module.Record:
    event = json.loads(record.value or b"")
    event["read_at"] = event["read_at"].replace("2024", str(2024 + years))
    return replace(record, value=json.dumps(event).encode())


@pytest.fixture
def release(aged: SmallRelease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallRelease:
    monkeypatch.setattr(small_release_module, "ARRIVED", LATER)
    return copy_release(aged, tmp_path / "state")


def expire(release: SmallRelease, now: datetime = NOW, **ages: timedelta) -> list[Expired]:
    """Expire with other ages than declared, if given, and publish."""
    pipeline = release.dataset.pipeline
    kept = replace(pipeline, retention=replace(pipeline.retention, **ages))
    opened = replace(release.release, writer=replace(release.release.writer, dataset=with_pipeline(release, kept)))
    done = expire_batches(release.settings, [opened], now)
    publish(release.settings, publication_of(release.settings, release.release, release.refined()))
    return done


def with_pipeline(release: SmallRelease, pipeline: object) -> object:
    return replace(release.dataset, pipeline=pipeline)


def audited(release: SmallRelease) -> DatasetAudit:
    """Audit the release; Kafka has deleted all records."""
    published = read_publication(release.settings, "meter")
    topic = Topic("meter", "meter-id", dict(release.ends), dict(release.ends), lambda *_: iter(()))
    tables = PinnedTables(tables_of(release.settings, published))
    return dataset_audit(
        AuditInput(release.dataset, published, tables, topic, files=loaded_files(release.settings, ()))
    )


def test_only_batches_older_than_declared_expire(release: SmallRelease) -> None:
    before = head_rows(release)
    compact_tables(release.settings, [release.release], 600, EARLY)
    done = expire(release)
    assert [(each.table, each.first, each.before, each.rows) for each in done] == [
        ("silver.meter", 0, 3, 9),
        ("rejected.meter", 0, 3, 4),
    ]
    after = head_rows(release)
    for name in ("silver.meter", "rejected.meter"):
        assert after[name].equals(before[name].filter(pl.col("_batch_id") >= 3)), name
    for name in set(before) - {"silver.meter", "rejected.meter"}:
        assert after[name].equals(before[name]), name
    assert expire(release) == [], "a second look finds nothing"
    names = json.loads(last_metadata(release))
    assert names["expired"] == [0, 3]
    assert names["offsets_expired"] == {"0": [100, 113]}
    assert names["rows_by_partition"] == {"0": 9}


def last_metadata(release: SmallRelease) -> str:
    log = sorted((release.release.writer.silver.spec.path / "_delta_log").glob("*.json"))[-1]
    (info,) = [json.loads(line) for line in log.read_text().splitlines() if "commitInfo" in line]
    return str(info["commitInfo"]["userMetadata"])


def test_age_of_silver_counts_from_the_newest_record(release: SmallRelease) -> None:
    assert expire(release, NOW + timedelta(days=5_000)) != []
    assert set(release.silver()["_batch_id"]) == {3, 4, 5}, "a stream that stands still keeps its records"


def test_bronze_expires_by_its_own_age_and_keeps_the_last_batch(release: SmallRelease) -> None:
    done = expire(release, NOW, bronze=timedelta(days=1))
    assert [each.table for each in done] == ["silver.meter", "rejected.meter", "bronze.meter"]
    assert set(release.read("bronze.meter")["_batch_id"]) == {3, 4, 5}
    expire(release, NOW + timedelta(days=30), bronze=timedelta(days=1))
    assert set(release.read("bronze.meter")["_batch_id"]) == {5}
    release.restart()
    release.take([dated(reading(40, 1), 8)])
    assert set(release.read("bronze.meter")["_batch_id"]) == {5, 6}
    refuse_incomplete(release.release, 6)


@pytest.mark.parametrize("ages", [{}, {"bronze": timedelta(days=1)}, {"bronze": timedelta(days=1), "silver": None}])
def test_audit_is_balanced_and_reports_expired_batches(release: SmallRelease, ages: dict[str, timedelta]) -> None:
    release.take([dated(reading(13, 7), 8)])
    expire(release, **ages)
    audit = audited(release)
    assert audit.findings == ()
    assert audit.balanced
    assert audit.first_unexpired["silver"] == (0 if ages.get("silver", 1) is None else 3)
    assert audit.first_unexpired["bronze"] == (3 if "bronze" in ages else 0)
    expired = {check.table: check.expired for check in audit.gold}
    assert expired == (
        {"gold.meter_hours": 6, "gold.meter_now": 2} if audit.first_unexpired["silver"] else dict.fromkeys(expired, 0)
    )


def test_audit_knows_duplicates_whose_winner_has_expired(release: SmallRelease) -> None:
    expire(release, silver=WITHOUT_TWO)
    kept = release.rejected().filter(pl.col("disposition") == "duplicate")
    assert [row[0]["detail"].split("/")[0] for row in kept["reasons"]] == ["1"], "batch 2 repeats a record of batch 1"
    audit = audited(release)
    assert (audit.first_unexpired["silver"], audit.findings) == (2, ())


def test_audit_finds_rows_that_expired_without_a_name(release: SmallRelease) -> None:
    expire(release)
    silver = release.release.writer.silver
    silver.commit("thief", 1, {}, [], silver.files()[:1])
    publish_heads(release)
    assert {finding.table for finding in audited(release).findings} >= {"silver.meter"}


def test_expiry_whose_counts_do_not_add_up_is_refused(release: SmallRelease, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "_counts", lambda *_: {"rows_by_partition": {"0": 8}})
    with pytest.raises(RowsUnaccounted, match="do not add up"):
        expire(release)
    assert release.silver().height == 18, "nothing was committed"


def publish_heads(release: SmallRelease) -> None:
    published = read_publication(release.settings, "meter")
    silver = release.release.writer.silver
    tables = {**published.tables, "silver.meter": replace(published.tables["silver.meter"], version=silver.version)}
    publish(release.settings, replace(published, tables=tables))


def test_deep_audit_recomputes_the_batches_that_have_not_expired(release: SmallRelease) -> None:
    expire(release, silver=WITHOUT_TWO)
    published = read_publication(release.settings, "meter")
    versions = {name: table.version for name, table in published.tables.items()}
    pinned = pinned_release(release.spark, release.settings, release.dataset, versions)
    found = recompute_history(release.settings, pinned, published.batch, release.settings.state / "deep")
    assert (found.first, found.expired, [each.counts for each in found.differences]) == (2, 2, [{}] * 4)
    assert found.records == 17, "batch 2 has a duplicate of a record that has expired"


def test_plans_over_expired_records_are_refused_by_name(release: SmallRelease) -> None:
    expire(release)
    rebuild(release.settings)
    now = datetime(2032, 6, 1, tzinfo=UTC)
    for parameters in (
        ReplayParameters(by="batches", first_batch=2, last_batch=4, source="bronze"),
        ReplayParameters(by="offsets", offsets={"0": [110, 120]}, source="bronze"),
        ReplayParameters(by="time", start=ARRIVED - timedelta(days=1), end=LATER + timedelta(days=1), source="bronze"),
    ):
        with raises(Terminal, "range-refused", match="3: they have expired, as retention of pipeline.yaml"):
            ReplayPlan().plan(release.settings, "meter", parameters, "me", now)
    old = BackfillParameters(start=datetime(2024, 2, 10, tzinfo=UTC), end=datetime(2033, 1, 1, tzinfo=UTC))
    with raises(Terminal, "range-refused", match="batches before 3: they have expired"):
        BackfillPlan().plan(release.settings, "meter", old, "me", now)
    kept = ReplayParameters(by="batches", first_batch=3, last_batch=4, source="bronze")
    assert ReplayPlan().plan(release.settings, "meter", kept, "me", now).plan.predicted.records == 8


def test_open_plan_stops_expiry(release: SmallRelease) -> None:
    parameters = ReplayParameters(by="batches", first_batch=0, last_batch=5, source="bronze")
    ReplayPlan().plan(release.settings, "meter", parameters, "me", datetime.now(UTC))
    assert expire(release) == []
    assert release.silver().height == 18


def test_slice_that_needs_expired_records_is_refused(release: SmallRelease, tmp_path: Path) -> None:
    # Devices d0 and d1 have rows of batch 0 in the table without a window.
    expire(release)
    patcher = SlicePatcher(release, tmp_path)
    expected = "gold.meter_now: 2 rows that the slice touches were computed from records"
    with pytest.raises(Terminal, match=expected) as refused:
        patcher.rebuild(Slice([Span(0, 113, 125, BRONZE)]), complete=3)
    assert refused.value.code == "grains-expired"


def double_litres(folder: Path) -> None:
    path = folder / "silver.py"
    path.write_text(
        path.read_text().replace("return accepted", 'return accepted.withColumn("litres", accepted.litres * 2)')
    )


@pytest.mark.extended
def test_patch_of_grains_whose_records_expired_since_it_was_built_is_refused(
    release: SmallRelease, tmp_path: Path
) -> None:
    patcher = SlicePatcher(release, tmp_path)
    patch, _, differing = patcher.rebuild(Slice([Span(0, 113, 125, BRONZE)]), double_litres)
    assert differing["gold.meter_now"] > 0
    expire(release)
    before = release.versions()
    with pytest.raises(Terminal, match="gold.meter_now") as refused:
        patcher.apply(patch)
    assert refused.value.code == "grains-expired"
    assert release.versions() == before


def test_slice_of_duplicates_of_expired_records_is_refused(release: SmallRelease, tmp_path: Path) -> None:
    expire(release, silver=WITHOUT_TWO)
    patcher = SlicePatcher(release, tmp_path)
    with pytest.raises(Terminal, match="duplicates of records of batch 1, which has expired") as refused:
        patcher.rebuild(Slice([Span(0, 108, 113, BRONZE)]))
    assert refused.value.code == "originals-expired"


def test_totals_count_the_rows_that_are_left(release: SmallRelease) -> None:
    rebuild(release.settings)
    expire(release, bronze=timedelta(days=1))
    assert rebuild(release.settings).differences.keys() == {"expirations", "totals"}
    reader = open_reader(release.settings)
    found = reader.totals()["meter"]
    (totals,) = found.releases.values()
    reader.close()
    assert (found.bronze, found.expired) == (12, 13)
    assert (totals.rows_in, totals.accepted, totals.invalid, totals.duplicate) == (12, 9, 3, 0)
    assert totals.expired == {"silver": 9, "rejected": 4}


def test_duplicates_of_kept_records_are_found_and_the_index_forgets_the_rest(release: SmallRelease) -> None:
    adopted(release.release.writer).identities.rebuild()
    expire(release)
    assert adopted(release.release.writer).identities.rebuild() == 9
    release.take([dated(reading(13, 7), 8), dated(reading(40, 7), 8)])
    assert release.rejected().filter(pl.col("disposition") == "duplicate").height == 1
    assert release.silver().height == 10


def test_record_older_than_the_contract_allows_is_rejected(release: SmallRelease) -> None:
    release.take([dated(reading(42, 7), 0), dated(reading(43, 7), 8)])
    (row,) = release.rejected().filter(pl.col("_batch_id") == 6).to_dicts()
    assert [reason["rule"] for reason in row["reasons"]] == ["past_ts"]


@pytest.mark.parametrize(
    "step", [2, pytest.param(1, marks=pytest.mark.extended), pytest.param(3, marks=pytest.mark.extended)]
)
def test_crash_between_commits_is_completed(release: SmallRelease, step: int) -> None:
    passed: list[Step] = []

    def die(here: Step) -> None:
        passed.append(here)
        if passed.count(Step.BATCHES_EXPIRED) == step:
            raise KeyboardInterrupt

    step_listeners.append(die)
    try:
        with pytest.raises(KeyboardInterrupt):
            expire(release, bronze=timedelta(days=1))
    finally:
        step_listeners.remove(die)
    release.restart()
    publish(release.settings, publication_of(release.settings, release.release, 5))
    assert audited(release).findings == ()
    expire(release, bronze=timedelta(days=1))
    tables = tables_of(release.settings, read_publication(release.settings, "meter"))
    assert [first_unexpired_batch(tables[f"{layer}.meter"]) for layer in ("bronze", "silver", "rejected")] == [3, 3, 3]
    assert audited(release).balanced


def test_release_plan_names_the_expired_batches_that_it_lacks(release: SmallRelease, tmp_path: Path) -> None:
    expire(release, bronze=timedelta(days=1))
    folder = tmp_path / "datasets" / "meter"
    shutil.copytree(release.dataset.folder, folder)
    (folder / "silver.py").write_text((folder / "silver.py").read_text() + "\n# Changed.\n")
    settings = release.settings.model_copy(update={"datasets": folder.parent})
    plan = ReleasePlan().plan(settings, "meter", ReleaseParameters(), "me", datetime.now(UTC)).plan
    assert plan.requested == "without batches before 3, which have expired from bronze"
    with raises(Terminal, "start-point-refused", match="batches before 3 have expired from bronze"):
        ReleasePlan().plan(settings, "meter", ReleaseParameters(from_batch=2), "me", datetime.now(UTC))


@pytest.mark.parametrize("absurd", [datetime(9999, 12, 29, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)])
def test_time_that_a_producer_invented_counts_as_the_commit(
    release: SmallRelease, monkeypatch: pytest.MonkeyPatch, absurd: datetime
) -> None:
    monkeypatch.setattr(small_release_module, "ARRIVED", absurd)
    first = release.take([reading(80, 7)])
    last, day = release.take([reading(81, 7)]), timedelta(days=1)
    now = datetime.now(UTC) + timedelta(minutes=1)
    assert _first_younger(release.bronze, first, last + 1, now, now - day) == first
    assert _first_younger(release.bronze, first, last + 1, now + 2 * day, now + day) == last + 1
