"""A folder inferred from a sample runs: its case holds, and every record of the sample is accepted."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from stock_changes import POSTGRES, Row, stock_changes

from include.declare.dataset import declared_dataset, expected_case
from include.declare.inferred_changes import inferred_changes
from include.declare.inferred_dataset import inferred_dataset
from include.declare.sample_records import record_sample
from include.declare.scaffold import write_folder
from include.ground.settings import Settings
from spark_jobs.jobs.tried_sample import tried

NOW = datetime(2026, 6, 1, tzinfo=UTC)
SAMPLES: dict[str, list[dict[str, Any]]] = {
    "orders": [
        {
            "id": f"o{n}",
            "at": f"2026-05-0{1 + n // 20}T08:{n:02}:00+02:00",
            "shop": "ab"[n % 2],
            "paid": n / 4,
            "new": n > 9,
            "from": n,
        }
        for n in range(40)
    ],
    "epochs": [{"ts": 1_777_600_000_000 + n, "device": f"d{n % 3}", "level": n, "huge": 10**15 + n} for n in range(30)],
    "locals": [{"at": f"2026-05-01 08:{n:02}:00", "code": f"c{n}", "note": None if n % 2 else "x"} for n in range(30)],
    "camels": [
        {"eventId": f"e{n}", "occurredAt": "2026-05-01T08:00:00.5Z", "unitPrice": n + 0.25, "x-y": True, "kIND": "b"}
        for n in range(30)
    ],
}


@pytest.mark.parametrize("name", SAMPLES)
def test_inferred_folder_accepts_its_sample_and_its_case_holds(spark: SparkSession, tmp_path: Path, name: str) -> None:
    settings = Settings(state=tmp_path / "state", datasets=tmp_path / "datasets")
    records = [json.dumps(record).encode() for record in SAMPLES[name]]
    sample = record_sample("sample", records)
    folder = write_folder(settings, inferred_dataset(name, name, sample, NOW), sample)
    case = folder / "cases" / "sample.jsonl"
    expected = expected_case(case)
    assert expected is not None
    dataset = declared_dataset(settings, name)

    found = tried(spark, settings, dataset, case, NOW)
    rejected = {str(each["line"]): [reason["rule"] for reason in each["reasons"]] for each in found["rejected"]}
    assert expected.differences(rejected, {}) == []
    assert (found["records"], found["accepted"]) == (22, 20)

    whole = tmp_path / "whole.jsonl"
    whole.write_bytes(b"\n".join(records))
    all_of_it = tried(spark, settings.model_copy(update={"state": tmp_path / "other"}), dataset, whole, NOW)
    assert (all_of_it["accepted"], all_of_it["rejected"]) == (len(records), [])
    rows = all_of_it["gold"][f"gold.{name}_days"]["first"]
    assert sum(row["records"] for row in rows) == len(records)


def with_desc(change: Row) -> Row:
    """A change of a row with a column that is named by a word of SQL."""
    return change | {side: row | {"desc": "x"} for side in ("before", "after") if (row := change[side])}


def test_folder_inferred_from_changes_has_the_rows_as_they_are_now(spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings(state=tmp_path / "state", datasets=tmp_path / "datasets")
    records = [json.dumps(with_desc(change)).encode() for change in stock_changes(POSTGRES, "lsn")]
    sample = record_sample("sample", records)
    folder = write_folder(settings, inferred_changes("stock", "stock", sample, NOW), sample)
    whole = tmp_path / "whole.jsonl"
    whole.write_bytes(b"\n".join(records))
    dataset = declared_dataset(settings, "stock")
    found = tried(spark, settings, dataset, whole, NOW)
    assert (found["accepted"], found["rejected"]) == (len(records), [])
    rows = found["gold"]["gold.stock_rows"]["first"]
    assert [(row["shop"], row["item_no"], row["left"], row["desc"]) for row in rows] == [
        (shop, item, 4, "x") for shop in ("north", "south") for item in range(10)
    ]
    versions = found["gold"]["gold.stock_versions"]
    assert versions["rows"] == 80, "each of 20 rows was created twice and changed twice"
    case = folder / "cases" / "sample.jsonl"
    of_case = tried(spark, settings.model_copy(update={"state": tmp_path / "other"}), dataset, case, NOW)
    rejected = {str(each["line"]): [reason["rule"] for reason in each["reasons"]] for each in of_case["rejected"]}
    expected = expected_case(case)
    assert expected is not None
    assert expected.differences(rejected, {}) == []


def test_field_of_another_name_is_read_and_its_faults_name_the_column(spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings(state=tmp_path / "state", datasets=tmp_path / "datasets")
    lines = [json.dumps(record) for record in SAMPLES["camels"]]
    sample = record_sample("sample", [line.encode() for line in lines])
    write_folder(settings, inferred_dataset("camels", "camels", sample, NOW), sample)
    file = tmp_path / "wrong.jsonl"
    wrong = [lines[0].replace("30.25", '"x"').replace("0.25", '"x"'), lines[1].replace("eventId", "event_id")]
    escaped = lines[2].replace('"e2"', '"\\u00652"')
    file.write_text("\n".join([*wrong, escaped]))
    found = tried(spark, settings, declared_dataset(settings, "camels"), file, NOW)
    reasons = [(each["line"], [(r["rule"], r["column"]) for r in each["reasons"]]) for each in found["rejected"]]
    assert reasons == [(1, [("type", "unit_price")]), (2, [("missing_id", "event_id")])]
    (row,) = found["silver"]
    assert (row["event_id"], row["unit_price"], row["x_y"], row["k_ind"]) == ("e2", "2.2500", True, "b")


def test_time_that_does_not_exist_is_rejected_by_silver_code(spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings(state=tmp_path / "state", datasets=tmp_path / "datasets")
    lines = [json.dumps(record) for record in SAMPLES["locals"]]
    sample = record_sample("sample", [line.encode() for line in lines])
    write_folder(settings, inferred_dataset("locals", "locals", sample, NOW), sample)
    file = tmp_path / "wrong.jsonl"
    file.write_text("\n".join([*lines[:20], lines[20].replace("2026-05-01", "2026-02-30")]))
    found = tried(spark, settings, declared_dataset(settings, "locals"), file, NOW)
    assert [(each["line"], each["reasons"][0]["rule"]) for each in found["rejected"]] == [(21, "transform_error")]
