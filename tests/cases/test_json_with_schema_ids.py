"""JSON in the wire format of a schema registry: the five bytes are taken off, the rest is validated as JSON."""

from __future__ import annotations

import json
from concurrent.futures import wait
from pathlib import Path

import pytest
from avro_trades import CONTRACT, trades_folder
from pyspark.sql import SparkSession
from small_release import Record, small_release

from include.declare.writer_schemas import framed
from include.ground.settings import Settings
from spark_jobs.backends.local import prepared_query as prepared_silver
from spark_jobs.backends.local.backend import adopted
from spark_jobs.backends.local.validation import begin_full_validation

TRADE = {"trade_id": "t1", "tradedAt": "2026-11-30T12:00:00Z", "quantity": 3}


@pytest.mark.parametrize("is_begun", [False, True])
def test_json_behind_a_schema_id_is_validated_as_json(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    folder = trades_folder(tmp_path / "datasets")
    (folder / "contract.yaml").write_text(CONTRACT.replace("value: avro", "value: json-schema"), "utf-8")
    release = small_release(spark, Settings(state=tmp_path / "a state"), "trades", folder)
    if is_begun:
        begun = begin_full_validation(spark, release.dataset)
        wait(begun.values())
        monkeypatch.setattr(prepared_silver, "row_projection", lambda *_: pytest.fail("it was built again"))
        adopted(release.release.writer).prepared.expect(begun)
    plain, escaped = json.dumps(TRADE), json.dumps(TRADE | {"trade_id": "tΩ"})
    release.take(
        [
            Record(framed(7, plain.encode())),
            Record(framed(8, escaped.encode())),
            Record(plain.encode()),
            Record(framed(7, b"{")),
            Record(framed(7, json.dumps(TRADE | {"trade_id": "t2", "quantity": "3"}).encode())),
            Record(framed(7, plain.encode())),
            Record(b""),
            Record(None),
        ]
    )
    assert release.silver().select("trade_id", "quantity").rows() == [("t1", 3), ("tΩ", 3)]
    reasons = [row["reasons"][0]["rule"] for row in release.rejected().iter_rows(named=True)]
    assert reasons == ["wire_format", "malformed", "type", "duplicate", "wire_format", "null_value"]
