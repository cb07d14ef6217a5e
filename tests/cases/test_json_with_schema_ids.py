"""JSON in the wire format of a schema registry: the five bytes are taken off, the rest is validated as JSON."""

from __future__ import annotations

import json
from concurrent.futures import wait
from pathlib import Path

import pytest
from avro_trades import CONTRACT, trades_folder
from pyspark.sql import SparkSession
from registry_stand_in import registry_stand_in
from small_release import Record, small_release

from include.declare.dataset import declared_dataset
from include.declare.payload_format import JsonSchemaFormat
from include.declare.payloads import registry_check
from include.declare.writer_schemas import framed
from include.ground.errors import Refused
from include.ground.schema_registry import RegistryNotSet
from include.ground.settings import Settings
from include.read.memory_database import memory_database
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


def test_lines_are_sent_with_the_id_of_the_registered_schema(tmp_path: Path) -> None:
    folder = trades_folder(tmp_path / "datasets")
    (folder / "contract.yaml").write_text(CONTRACT.replace("value: avro", "value: json-schema"), "utf-8")
    (tmp_path / "trade.json").write_text('{"type": "object"}', "utf-8")
    with registry_stand_in() as registry:
        settings = Settings(datasets=tmp_path / "datasets", schema_registry_url=registry.address)
        dataset = declared_dataset(settings, "trades")
        payload, line = dataset.contract.payload, json.dumps(TRADE).encode()
        encode = payload.encoding(settings, dataset, tmp_path / "trade.json")
        assert encode is not None
        assert encode(1, line) == framed(1, line)
        assert (registry.types, registry.subjects) == ({1: "JSON"}, {"trades-value": [1]})
        problems, about = registry_check(settings, dataset)
        assert (problems, "schema 1" in about, "not compared" in about) == ([], True, True)
        with pytest.raises(Refused, match="name a schema of type JSON, which a contract is not"):
            payload.encoding(settings, dataset, None)
    with pytest.raises(RegistryNotSet):
        payload.encoding(Settings(datasets=tmp_path / "datasets"), dataset, tmp_path / "trade.json")


def test_payload_is_read_as_text_behind_the_id(tmp_path: Path) -> None:
    database, payload = memory_database(), JsonSchemaFormat()
    payload.define_texts(database, {})
    found = database.execute("select payload_text(?), payload_text(?), fix_text(?)", [framed(7, b"{}"), b"\xff", b"[]"])
    assert found.fetchall() == [("{}", None, "[]")]
