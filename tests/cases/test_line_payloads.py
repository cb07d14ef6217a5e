"""Records that are lines: the same rows by both backends, rebuilds and audits; what is no such line has a reason."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from compactable_release import assert_same_rows, head_rows
from pyspark.sql import SparkSession
from slice_patcher import SlicePatcher
from small_release import Record, SmallRelease, small_release
from test_recomputed_history import differing

from include.audit.findings import Finding
from include.audit.silver import (
    define_exact_number,
    number_findings,
    orphan_findings,
    register_fixes,
    repeated_findings,
    split_findings,
)
from include.declare.contract_file import load_contract
from include.declare.dataset import declared_dataset
from include.declare.history_slice import BRONZE, Slice, Span
from include.declare.yaml_declarations import DeclarationRefused
from include.ground.settings import Settings
from include.read.memory_database import memory_database
from spark_jobs.jobs.tried_sample import tried

HISTORY = Slice([Span(0, 0, 10_000, BRONZE), Span(1, 0, 10_000, BRONZE)])
PIPELINE = """\
topic: {name}
partitions: 2
event_time: at
lateness: 2 days
identity:
  columns: [{identity}]
  horizon: 3 days
gold:
  {name}_days:
    kind: additive
    window: {{column: at, size: 1 day, as: day}}
    keys: []
    partition: date_format(day, 'yyyy-MM')
    measures:
      records: {{count: "*"}}
"""
CONTRACT = """\
apiVersion: v3.1.0
kind: DataContract
id: {name}
name: {name}
version: 1.0.0
status: active

schema:
  - name: {name}
    physicalType: topic
    logicalType: object
    customProperties:
{properties}
    properties:
{columns}
"""
REQUESTS_SILVER = '''\
"""`silver.requests`: the parts of a line."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def silver(accepted: DataFrame) -> DataFrame:
    """Return what each line has: the time, the path and the status."""
    parts = F.split("line", " ", 3)
    return accepted.withColumns(
        {"at": F.to_timestamp(parts[0]), "status": parts[1].cast("int"), "path": parts[2]}
    )
'''
REQUESTS_COLUMNS = r"""      - name: line
        logicalType: string
        required: true
        unique: true
        primaryKey: true
        logicalTypeOptions: {maxLength: 100, pattern: '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \d{3} /'}
"""


@dataclass(frozen=True)
class LineDataset:
    """A dataset of lines below `folder`."""

    name: str
    identity: str
    properties: str
    columns: str
    silver: str

    def written(self, datasets: Path) -> Path:
        """Write the folder."""
        folder = datasets / self.name
        folder.mkdir(parents=True)
        contract = CONTRACT.format(name=self.name, properties=self.properties, columns=self.columns)
        pipeline = PIPELINE.format(name=self.name, identity=self.identity)
        for name, text in (("contract.yaml", contract), ("pipeline.yaml", pipeline), ("silver.py", self.silver)):
            (folder / name).write_text(text, "utf-8")
        return folder

    def release(self, spark: SparkSession, state: Path, datasets: Path, backend: str) -> SmallRelease:
        """Return a release by a backend."""
        settings = Settings(state=state / backend, backend=backend, datasets=datasets)
        return small_release(spark, settings, self.name, datasets / self.name)


REQUESTS = LineDataset(
    *("requests", "line", "      - {property: format, value: text}", REQUESTS_COLUMNS, REQUESTS_SILVER)
)


def reasons(release: SmallRelease) -> list[tuple[str, str | None]]:
    found = [row["reasons"] for row in release.rejected().iter_rows(named=True)]
    return [(f"{each[0]['rule']} {each[0]['column']}".strip(), each[0]["detail"]) for each in found]


def audited(release: SmallRelease) -> list[Finding]:
    """Return what the shallow audit finds in silver and rejected, by its own reader of payloads."""
    database, dataset = memory_database(), release.dataset
    name, contract = dataset.name, dataset.contract
    for view, table in (("bronze", "bronze"), ("silver", "silver"), ("all_silver", "silver"), ("rejected", "rejected")):
        database.register(view, release.read(f"{table}.{name}").to_arrow())
    register_fixes(database, {})
    contract.payload.define_texts(database, {}, contract.columns)
    define_exact_number(database)
    columns = {column.name: column for column in contract.columns}
    last = release.batches - 1
    return [
        *split_findings(database, name, last),
        *number_findings(database, name, {column.name: column.member for column in contract.columns}),
        *repeated_findings(database, name, dataset.pipeline),
        *orphan_findings(database, name, dataset.pipeline, 0, columns),
    ]


FIRST = b"2026-11-30T12:00:01Z 200 /a"
TEXT_BATCHES: list[list[bytes | None]] = [
    [
        FIRST,
        'x"\\2026 Ω'.encode(),
        '2026-11-30T12:00:02Z 404 /"Ω"\\n\t{} '.encode(),
        b"2026-11-30T12:00:03Z 200 /\xff",
        b"2026-11-30T12:00:04Z 200 /\xed\xa0\x80",
        None,
        b"",
    ],
    [
        FIRST + b"\r\n",
        b"2026-11-30T12:00:05Z 500 /two\nlines\n",
        b"2026-11-30T12:00:06Z 500 /\x1b[0m",
        b"2026-11-30T12:00:07Z 200 /" + b"x" * 100,
        b"2026-11-30T12:00:08Z 200 /z\n",
    ],
]
TEXT_REASONS = [
    *(("pattern line", 'x"\\2026 Ω'), ("bad_utf8", None), ("bad_utf8", None), ("null_value", None)),
    *(("pattern line", ""), ("duplicate line", "0/0/100"), ("control_char", "$.line")),
    ("length line", "2026-11-30T12:00:07Z 200 /" + "x" * 38),
]


def test_lines_of_text_become_rows(spark: SparkSession, tmp_path: Path, backend: str) -> None:
    REQUESTS.written(tmp_path / "datasets")
    release = REQUESTS.release(spark, tmp_path, tmp_path / "datasets", backend)
    for values in TEXT_BATCHES:
        release.take([Record(value) for value in values])
    assert reasons(release) == TEXT_REASONS
    at = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
    assert release.silver().select("at", "status", "path").rows() == [
        (at.replace(second=1), 200, "/a"),
        (at.replace(second=2), 404, '/"Ω"\\n\t{} '),
        (at.replace(second=5), 500, "/two\nlines"),
        (at.replace(second=8), 200, "/z"),
    ]
    assert audited(release) == []
    assert differing(release) == {}
    before = head_rows(release)
    _, rebuilt, changed = SlicePatcher(release, tmp_path).rebuild(HISTORY)
    assert (rebuilt.core, set(changed.values())) == (12, {0})
    one = REQUESTS.release(spark, tmp_path / "one batch", tmp_path / "datasets", backend)
    one.take([Record(value) for values in TEXT_BATCHES for value in values])
    assert one.silver()["line"].to_list() == release.silver()["line"].to_list()
    assert_same_rows(head_rows(release), before)


def test_lines_of_a_file_are_tried_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings(state=tmp_path / "state", datasets=tmp_path / "datasets")
    REQUESTS.written(settings.datasets)
    (tmp_path / "sample").write_bytes(FIRST + b"\nno request\n")
    found = tried(spark, settings, declared_dataset(settings, "requests"), tmp_path / "sample", datetime.now(UTC))
    assert (found["accepted"], found["reasons"]) == (1, {"pattern": 1})


@pytest.mark.parametrize(
    "columns",
    [
        "      - {name: line, logicalType: integer, required: true, unique: true, primaryKey: true}",
        "      - {name: line, logicalType: string, required: true, unique: true, primaryKey: true}\n"
        "      - {name: more, logicalType: string}",
    ],
)
def test_record_of_text_has_one_column_of_text(tmp_path: Path, columns: str) -> None:
    folder = LineDataset("requests", "line", REQUESTS.properties, columns, REQUESTS_SILVER).written(tmp_path)
    with pytest.raises(DeclarationRefused, match="is the value of one string column"):
        load_contract(folder)
