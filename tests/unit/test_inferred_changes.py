"""A folder made from a sample of Debezium's records declares the row, its key, and the order of its changes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from error_codes import raises
from stock_changes import MYSQL, POSTGRES, Row, stock_changes

from include.declare.dataset import load_dataset
from include.declare.dataset_checks import dataset_problems
from include.declare.inferred_changes import InferredChanges, inferred_changes, is_change
from include.declare.sample_records import SampleUnusable, record_sample
from include.declare.scaffold import case_texts, write_folder
from include.ground.settings import Settings

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def inferred(records: list[Row], name: str = "stock") -> InferredChanges:
    return inferred_changes(name, name, record_sample("sample", [json.dumps(each).encode() for each in records]), NOW)


def test_key_is_what_creates_a_row_once_and_columns_may_be_null() -> None:
    found = inferred(list(stock_changes(POSTGRES, "lsn")))
    assert (found.keys, found.identity) == (("shop", "item_no"), ("shop", "item_no", "sequence", "op"))
    assert {field.name: field.required for field in found.fields} == {
        **{"shop": True, "item_no": True},
        **{"left": False, "price": False},
    }


@pytest.mark.parametrize(
    ("source", "position", "identity", "pointers"),
    [
        (
            *({**POSTGRES, "change_lsn": "0000:01"}, "event_serial_no"),
            *(["change_lsn", "event_number", "shop", "item_no"], ["/source/change_lsn", "/source/event_serial_no"]),
        ),
        (POSTGRES, "lsn", ["shop", "item_no", "sequence"], []),
        (MYSQL, "pos", ["binlog_file", "binlog_position", "shop", "item_no"], ["/source/file", "/source/pos"]),
        (POSTGRES, "commit_time", ["shop", "item_no", "ts_ms"], []),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "with a schema"])
def test_folder_is_a_dataset_whose_changes_are_in_order(
    tmp_path: Path, source: Row, position: str, identity: list[str], pointers: list[str], wrapped: bool
) -> None:
    changes = list(stock_changes(source, position))
    records = [{"schema": {"type": "struct"}, "payload": each} if wrapped else each for each in changes]
    assert all(map(is_change, records))
    settings = Settings(state=tmp_path / "a state", datasets=tmp_path / "datasets")
    sample = record_sample("sample", [json.dumps(each).encode() for each in records])
    folder = write_folder(settings, inferred_changes("stock", "stock", sample, NOW), sample)
    assert dataset_problems(settings, "stock") == []
    dataset = load_dataset("stock", folder)
    assert list(dataset.pipeline.identity) == [*identity, "op"]
    assert [gold.name for gold in dataset.pipeline.gold] == ["stock_rows", "stock_versions"]
    read = [column.physical_name for column in dataset.contract.columns]
    assert [place for place in read if place.startswith("/") and place != "/source/lsn"] == pointers
    assert {"after.shop", "after.left"} <= set(read)


@pytest.mark.parametrize("record", [{"op": "c"}, {"after": {"id": 1}, "op": "c"}, {"payload": 7, "schema": 1}, {}])
def test_other_records_are_no_changes(record: Row) -> None:
    assert not is_change(record)


def test_rows_without_a_possible_key_are_refused() -> None:
    records = [{"before": None, "after": {"paid": n % 2 == 0}, "source": {}, "op": "c", "ts_ms": n} for n in range(5)]
    with raises(SampleUnusable, "sample-unusable", match="no field of the rows may be their key"):
        inferred(records)


def test_columns_of_the_row_that_are_named_as_the_envelope_s_get_other_names() -> None:
    changes = list(stock_changes(POSTGRES, "lsn"))
    for each in changes:
        if each["after"]:
            each["after"]["op"] = "sell"
    found = inferred(changes)
    (field,) = (field for field in found.fields if field.path == ("op",))
    assert (field.name, field.member) == ("row_op", "op")


def test_a_sample_may_begin_with_a_deletion(tmp_path: Path) -> None:
    changes = list(stock_changes(POSTGRES, "lsn"))
    changes.insert(0, changes.pop(2))
    assert changes[0]["op"] == "d"
    sample = record_sample("sample", [json.dumps(each).encode() for each in changes])
    records, _ = case_texts(inferred_changes("stock", "stock", sample, NOW), sample)
    keyless = json.loads(records.splitlines()[-1])
    assert (keyless["after"]["shop"], keyless["after"]["item_no"]) == (None, None)


@pytest.mark.parametrize("row", ['{"_id": 1}', None, 7])
def test_documents_as_texts_are_no_rows(row: object) -> None:
    assert not is_change({"before": None, "after": row, "source": {}, "op": "c", "ts_ms": 1})
