"""Records of files: in bronze beside the topic's, in the release that has loaded them and in no other, audited."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from compactable_release import METER, reading
from error_codes import raises
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession
from simulated_deaths import Died, dying_at
from small_release import ARRIVED, SmallRelease, small_release

from include.audit.balance import DatasetAudit, dataset_audit
from include.audit.findings import FindingKind
from include.audit.kafka import Topic
from include.audit.kafka_comparison import AuditInput
from include.audit.loaded_files import loaded_files
from include.change.load import LoadPlan, LoadRefused
from include.change.plan_parameters import LoadParameters, ReleaseParameters
from include.change.release import ReleasePlan
from include.declare.dataset import Dataset, released_dataset, snapshot_dataset
from include.declare.file_sets import FileSet, RecordFile
from include.ground.errors import Refused, Transient
from include.ground.record_coordinates import offset_in_set
from include.ground.settings import Settings
from include.plans.journal import load_plan
from include.plans.plan import Plan
from include.read.publication import read_publication, tables_of
from include.read.published_tables import PinnedTables
from include.read.record_files import form_of
from spark_jobs.backends.spark import ingest
from spark_jobs.layers.bronze import refuse_changed
from spark_jobs.stream import loading
from spark_jobs.stream.loading import Loads, sole_turn
from spark_jobs.stream.preflight import bronze_head
from spark_jobs.tables.failpoints import Step

SET = 30_001


@dataclass
class LoadSite:
    """A published release of two batches, and a folder of files."""

    base: SmallRelease
    folder: Path

    def file(self, name: str, minutes: Sequence[int], litres: int | str = 5) -> Path:
        """Write readings of these minutes, a line each."""
        path = self.folder / name
        text = b"".join(bytes(reading(minute, litres).value or b"") + b"\n" for minute in minutes)
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return path

    def plan(self, pattern: str = "*.jsonl", **parameters: object) -> Plan:
        given = LoadParameters(files=[str(self.folder / pattern)], **parameters)  # type: ignore[arg-type]
        return LoadPlan().plan(self.base.settings, "meter", given, "tests", ARRIVED).plan

    def planned(self, plan: Plan) -> Dataset:
        return released_dataset(self.base.settings, "meter", plan.release)

    def load(self, plan: Plan) -> loading.LoadProgress:
        """Load as a new process of the owner does."""
        self.base.restart()
        files = self.planned(plan).file_sets[-1]
        bronze = self.base.bronze
        done = Loads(self.base.settings, bronze, sole_turn(bronze)).advance(self.base.release, files)
        self.base.batches = done.batch + 1
        return done

    def built(self, plan: Plan) -> SmallRelease:
        """Return the plan's release, refined up to bronze's end and published."""
        base = self.base
        fresh = SmallRelease(base.spark, base.settings, self.planned(plan), base.epoch, base.ends, base.batches)
        refine_all(fresh)
        return fresh


def refine_all(release: SmallRelease) -> None:
    while (run := release.release.next_run(release.batches - 1, 1_000)) is not None:
        release.refine(*run)


@pytest.fixture
def site(spark: SparkSession, tmp_path: Path, backend: str) -> LoadSite:
    return load_site(spark, tmp_path, backend)


def load_site(spark: SparkSession, tmp_path: Path, backend: str) -> LoadSite:
    folder = tmp_path / "datasets" / "meter"
    shutil.copytree(METER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    settings = Settings(state=tmp_path / "state", datasets=folder.parent, backend=backend)
    snapshot = snapshot_dataset(settings, "meter")
    base = small_release(spark, settings, "meter", snapshot.folder)
    base.take([reading(0, 1), reading(1, 2)])
    base.take([reading(2, 3), reading(3, "seven")])
    (tmp_path / "files").mkdir()
    return LoadSite(base, tmp_path / "files")


def audited(release: SmallRelease) -> DatasetAudit:
    """Audit the published release; Kafka has deleted all records."""
    published = read_publication(release.settings, "meter")
    topic = Topic("meter", "meter-id", dict(release.ends), dict(release.ends), lambda *_: iter(()))
    files = loaded_files(release.settings, release.dataset.file_sets)
    tables = PinnedTables(tables_of(release.settings, published))
    given = AuditInput(release.dataset, files.published(published), tables, files.beside(topic), files=files)
    return dataset_audit(given)


def places(rows: pl.DataFrame) -> list[tuple[int, int, int]]:
    return rows.select("_batch_id", "_partition", "_offset").rows()


def test_records_of_files_are_in_the_release_that_has_loaded_them(site: LoadSite) -> None:
    first = site.file("a.jsonl", [1, 10, 11])
    site.file("b.jsonl", [12, 10], "eight")
    plan = site.plan()
    before = site.base.silver()
    assert site.load(plan) == loading.LoadProgress(5, 2, 2, True, 2)
    refine_all(site.base)
    assert_frame_equal(site.base.silver(), before)
    assert audited(site.base).findings == ()
    fresh = site.built(plan)
    silver, rejected = fresh.silver(), fresh.rejected()
    assert places(silver)[3:] == [(2, SET, 1), (2, SET, 2)]
    assert silver["_topic"].unique().to_list() == ["meter", str(first)] or set(silver["_topic"]) == {
        "meter",
        str(first),
    }
    assert rejected.filter(pl.col("_partition") == SET).select("_offset", "disposition").rows() == [
        (0, "duplicate"),
        (offset_in_set(1, 0), "invalid"),
        (offset_in_set(1, 1), "invalid"),
    ]
    audit = audited(fresh)
    assert audit.findings == ()
    (own,) = [part for part in audit.partitions if part.partition == SET]
    assert (own.kafka, own.bronze, own.silver, own.rejected) == (5, 5, 2, 3)


def test_rows_of_csv_that_lack_or_exceed_its_columns_are_rejected(site: LoadSite) -> None:
    text = "event_id,device,read_at,litres\na,d1,2026-07-05T00:10:00Z,5\nb,d1\nc,d1,2026-07-05T00:11:00Z,5,6\n"
    (site.folder / "a.csv").write_bytes(text.encode() + b"d,d1\xff,2026-07-05T00:12:00Z,5\ne,\xff\n")
    plan = site.plan("*.csv")
    site.load(plan)
    fresh = site.built(plan)
    assert fresh.silver().filter(pl.col("_partition") == SET)["event_id"].to_list() == ["a"]
    rejected = fresh.rejected().filter(pl.col("_partition") == SET).sort("_offset")
    assert rejected["_offset"].to_list() == [1, 2, 3, 4]
    assert [each[0]["rule"] for each in rejected["reasons"]] == ["not_object", "not_object", "bad_utf8", "bad_utf8"]
    assert audited(fresh).findings == ()


LINES = b'\n{"a": 1}\r\n\n\n{"b": "\xc3\xa4"}\n\xff\xfe\n' + b'{"c": 3}\n' * 9 + b'{"d": 4}'
TABLE = b'id,n\n1,x\n2\n3,x,y\n\n4,\xff\n5,\xff,z\n6,"a\nb"\n'
NESTED = pa.table({"id": [1, 2, 3], "inside": [{"x": [1, None], "y": {"z": "ä"}}, None, {"x": [], "y": None}]})


def write_forms(folder: Path) -> dict[str, list[RecordFile]]:
    """Write files of each format, an empty one and compressed ones among them; return them by format."""
    for name, content in (("a.jsonl", LINES), ("b.jsonl.gz", gzip.compress(LINES)), ("c.jsonl", b""), ("d.csv", TABLE)):
        (folder / name).write_bytes(content)
    (folder / "e.csv.gz").write_bytes(gzip.compress(TABLE * 3))
    pq.write_table(NESTED, folder / "f.parquet", row_group_size=1)
    pl.DataFrame({"id": ["a", None], "n": [1, 2]}).write_avro(folder / "g.avro")
    found: dict[str, list[RecordFile]] = {}
    for path in sorted(folder.iterdir()):
        status = path.stat()
        file = RecordFile(str(path), status.st_size, status.st_mtime_ns, "not asked for")
        found.setdefault(form_of(path.name), []).append(file)
    return found


# What pyarrow cannot give to us of a row it reports besides.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.extended
def test_both_backends_have_the_same_bronze_of_the_same_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "MOST_ROWS", 4)
    (tmp_path / "history").mkdir()
    forms = write_forms(tmp_path / "history")
    found: dict[str, pl.DataFrame] = {}
    for backend in ("local", "spark"):
        base = load_site(spark, tmp_path / backend, backend).base
        loads = Loads(base.settings, base.bronze, sole_turn(base.bronze))
        for number, (form, files) in enumerate(sorted(forms.items())):
            loaded = FileSet(f"load-meter-{number}", SET + number, form, ("id",), ARRIVED, files)
            done = loads.advance(base.release, loaded)
            assert (done.is_done, done.done) == (True, len(files))
        rows = pl.read_delta(str(base.bronze.spec.path)).filter(pl.col("partition") >= SET)
        found[backend] = rows.drop("_batch_id").sort("partition", "offset")
    assert_frame_equal(found["spark"], found["local"])
    assert found["spark"].group_by("partition").len().sort("partition")["len"].to_list() == [2, 6 + 20, 26, 3]


def test_file_that_cannot_be_read_is_named_and_nothing_of_it_is_loaded(site: LoadSite) -> None:
    path = site.file("a.jsonl.gz", range(10, 50))
    path.write_bytes(path.read_bytes()[:-20])
    plan = site.plan("*.gz")
    with raises(
        Transient, "files-unreadable", match=r"a\.jsonl\.gz cannot be read: Truncated compressed stream"
    ) as raised:
        site.load(plan)
    assert (raised.value.facts["place"], raised.value.remedy) == (str(path), "the same command again")
    assert bronze_head(site.base.bronze).batch == 1  # type: ignore[union-attr]


def test_file_that_an_executor_may_not_read_is_named_with_the_reason(tmp_path: Path) -> None:
    """Executors read with the settings of the driver, and their disk is another one."""
    settings = Settings(state=tmp_path, warehouse_key_id="a key", warehouse_secret_file=tmp_path / "secret")
    files = FileSet("load-meter-1", SET, "jsonl", (), ARRIVED, [RecordFile("s3://history/a.jsonl", 1, 0, "")])
    (batch,) = ingest._read(settings, files, 0, iter([pa.RecordBatch.from_pydict({"id": [0]})]))
    (record,) = batch.to_pylist()
    assert record["topic"] == "s3://history/a.jsonl"
    assert record["key"].startswith(b"files-unreadable ")
    assert b"HEADRACE_WAREHOUSE_SECRET_FILE" in record["key"]


def test_file_that_is_emptied_while_executors_read_it_is_not_passed_over(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = load_site(spark, tmp_path, "local")
    # Executors read only the files: what the driver's process took before may be as it is.
    site.base.settings = site.base.settings.model_copy(update={"backend": "spark"})
    path, seen = site.file("a.jsonl", [10]), refuse_changed
    site.file("b.jsonl", [11])
    plan = site.plan()

    def emptied_after(*given: Any) -> None:
        seen(*given)
        path.write_bytes(b"")

    monkeypatch.setattr(ingest, "refuse_changed", emptied_after)
    with raises(Refused, "file-changed", match="a.jsonl has changed"):
        site.load(plan)
    assert bronze_head(site.base.bronze).batch == 1  # type: ignore[union-attr]


def test_records_of_the_topic_follow_and_meet_them_by_identity(site: LoadSite) -> None:
    site.file("a.jsonl", [10])
    plan = site.plan()
    site.load(plan)
    site.base.take([reading(10, 9), reading(11, 9)])
    fresh = site.built(plan)
    assert places(fresh.silver())[3:] == [(2, SET, 0), (3, 0, 105)]
    assert fresh.rejected().filter(pl.col("disposition") == "duplicate").height == 1
    head = bronze_head(site.base.bronze)
    assert head is not None
    assert SET not in head.ends
    assert audited(fresh).findings == ()


def test_later_release_has_the_files_too(site: LoadSite) -> None:
    site.file("a.jsonl", [10, 11])
    plan = site.plan()
    site.load(plan)
    fresh = site.built(plan)
    code = site.base.settings.datasets / "meter" / "silver.py"
    code.write_text(code.read_text() + "\n# changed\n")
    drafted = ReleasePlan().plan(site.base.settings, "meter", ReleaseParameters(dry_run=True), "tests", ARRIVED)
    assert drafted.plan.kind == "release"
    later = snapshot_dataset(site.base.settings, "meter", None, fresh.dataset.file_sets)
    assert [each.partition for each in later.file_sets] == [SET]


def test_prediction_is_what_the_build_reads(site: LoadSite) -> None:
    site.file("a.jsonl", [10, 11])
    plan = site.plan()
    assert plan.predicted.records == 4 + 2
    assert plan.changes[0].why.endswith("; the others are validated again")
    site.load(plan)
    fresh = site.built(plan)
    assert fresh.release.writer.records.count_rows(0, 9) == plan.predicted.records


def test_prediction_lacks_the_records_that_no_release_has(site: LoadSite) -> None:
    site.file("a.jsonl", [10, 11])
    plan = site.plan()
    site.load(plan)
    refine_all(site.base)
    shutil.rmtree(site.base.settings.state / "plans" / plan.id)
    site.file("b.jsonl", [12])
    assert site.plan("b.jsonl", dry_run=True).predicted.records == 4 + 1


def test_file_that_comes_twice_is_named(site: LoadSite) -> None:
    site.file("a.jsonl", [10])
    site.file("b.jsonl", [10])
    with pytest.raises(LoadRefused, match=r"b\.jsonl has the bytes of .*a\.jsonl") as raised:
        site.plan()
    assert raised.value.files == [str(site.folder / "b.jsonl")]
    assert len(site.planned(site.plan(skip_loaded=True)).file_sets[-1].files) == 1


def test_file_that_was_loaded_is_named(site: LoadSite) -> None:
    site.file("a.jsonl", [10])
    plan = site.plan()
    site.load(plan)
    site.built(plan)
    record = load_plan(site.base.settings, plan.id)
    shutil.rmtree(site.base.settings.state / "plans" / record.plan.id)
    with pytest.raises(LoadRefused, match=r"a\.jsonl of plan load-meter-1"):
        site.plan(dry_run=True)
    with pytest.raises(LoadRefused, match="loaded already") as raised:
        site.plan(dry_run=True, skip_loaded=True)
    assert raised.value.remedy == "headrace audit --dataset meter   (lists them)"


@pytest.mark.parametrize("change", ["grown", "other bytes", "gone"])
def test_changed_file_is_not_loaded(site: LoadSite, change: str) -> None:
    site.file("a.jsonl", [10])
    path = site.file("b.jsonl", [11])
    plan = site.plan()
    changed(path, change)
    with raises(Refused, "file-changed", match=r"b\.jsonl has changed"):
        site.load(plan)


def changed(path: Path, change: str) -> None:
    if change == "gone":
        path.unlink()
    else:
        text = path.read_bytes()
        path.write_bytes(text + b"{}\n" if change == "grown" else text.replace(b"5", b"6", 1))
        os.utime(path, ns=(1, 1))


@pytest.mark.parametrize("change", [pytest.param("grown", marks=pytest.mark.extended), "other bytes", "gone"])
def test_audit_names_files_that_changed_since(site: LoadSite, change: str) -> None:
    site.file("a.jsonl", [10])
    path = site.file("b.jsonl", [11, 12])
    plan = site.plan()
    site.load(plan)
    fresh = site.built(plan)
    changed(path, change)
    audit = audited(fresh)
    (own,) = [part for part in audit.partitions if part.partition == SET]
    assert (own.kafka, own.expired, own.bronze) == (1, 2, 3)
    found = [(each.kind, each.partition, each.start) for each in audit.findings]
    assert found == ([] if change == "gone" else [(FindingKind.different, SET, offset_in_set(1))])


def test_audit_finds_a_record_that_differs_from_its_file(site: LoadSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site.file("a.jsonl", [10, 11])
    plan = site.plan()
    site.load(plan)
    fresh = site.built(plan)
    site.file("a.jsonl", [10, 12])
    monkeypatch.setattr("include.audit.loaded_files.how_changed", lambda *_: "")
    (found,) = audited(fresh).findings
    assert (found.kind, found.partition, found.start) == (FindingKind.different, SET, 1)
    assert "value differs from its file" in found.sentence()


STEPS = (
    pytest.param(Step.BRONZE_STARTED, marks=pytest.mark.extended),
    Step.BRONZE_WRITTEN,
    pytest.param(Step.BRONZE_COMMITTED, marks=pytest.mark.extended),
)


@pytest.mark.parametrize("step", STEPS)
def test_load_continues_after_a_death(site: LoadSite, monkeypatch: pytest.MonkeyPatch, step: Step) -> None:
    # Of each core with the backend spark: three batches at least.
    monkeypatch.setattr(loading, "MOST_ROWS", 1)
    site.file("a.jsonl.gz", [10, 11, 12])
    site.file("b.jsonl.gz", [13, 14])
    plan = site.plan("*.gz")
    for passes in (1, 2):
        with dying_at(step, passes), pytest.raises(Died):
            site.load(plan)
    done = site.load(plan)
    assert done.is_done
    fresh = site.built(plan)
    loaded = fresh.silver().filter(pl.col("_partition") == SET)
    assert loaded["_offset"].to_list() == [0, 1, 2, offset_in_set(1, 0), offset_in_set(1, 1)]
    assert audited(fresh).findings == ()
