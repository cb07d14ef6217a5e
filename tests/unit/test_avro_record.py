"""What a contract's columns take from the fields of an Avro record, and which records a contract cannot read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from avro_trades import CONTRACT, FIRST, SECOND, encoded, first_trade, schema_text, second_trade, trades_folder
from error_codes import raises

from include.declare.avro_payloads import AvroFormat, avro_encoding, contract_schema
from include.declare.avro_record import SchemaUnusable, avro_record
from include.declare.contract import Contract
from include.declare.contract_file import load_contract
from include.declare.payload_format import JsonSchemaFormat
from include.declare.payloads import shown_payload
from include.declare.writer_schemas import framed, schema_id
from include.declare.yaml_declarations import DeclarationRefused
from include.ground.errors import Refused
from include.ground.schema_registry import RegisteredSchema

TREE = {"type": "record", "name": "Tree", "fields": [{"name": "left", "type": ["null", "Tree"]}]}
SCHEMAS = {1: RegisteredSchema(1, "AVRO", schema_text(FIRST)), 2: RegisteredSchema(2, "AVRO", schema_text(SECOND))}


@pytest.fixture
def contract(tmp_path: Path) -> Contract:
    return load_contract(trades_folder(tmp_path))


def record(**types: Any) -> str:
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    return json.dumps({"type": "record", "name": "R", "namespace": "a.b", "fields": fields})


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("string", "text"),
        ({"type": "string", "logicalType": "uuid"}, "text"),
        (["null", "string"], "text"),
        (["string"], "text"),
        ("bytes", "bytes"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "text"),
        ({"type": {"type": "enum", "name": "E", "symbols": ["A"]}}, "text"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp"),
        ({"type": "int", "logicalType": "date"}, "date"),
        ({"type": "fixed", "name": "F", "size": 8, "logicalType": "decimal", "precision": 12}, "decimal"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 60}, "decimal"),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, "local timestamp"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, "integer"),
        ({"type": "fixed", "name": "F", "size": 8}, "bytes"),
        ({"type": "fixed", "name": "F", "size": 16, "logicalType": "uuid"}, "text"),
        (["string", "long"], "union of text, integer"),
        ({"type": "array", "items": "long"}, "array"),
        ({"type": "map", "values": "long"}, "map"),
        (TREE, "record"),
        (["null", TREE], "record"),
        ("null", "null"),
    ],
)
def test_kind_of_a_field(kind: Any, expected: str) -> None:
    assert avro_record(record(f=kind)).fields["f"].kind == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", '"string"', '{"type": "array", "items": "long"}', '{"type": "record", "name": "r"}'),
        *('{"type": "record", "name": "r", "fields": [{"name": "a", "type": "Unknown"}]}',),
        *(record(a={"type": "array", "items": "null"})),
        record(a={"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}),
        record(a={"type": "enum", "name": "E", "symbols": ["A", "Ü"]}),
        record(a={"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}),
        record(a={"type": "map", "values": {"type": "record", "name": "E", "fields": [{"name": "n", "type": "null"}]}}),
    ],
)
def test_schema_that_describes_no_readable_record_is_refused(text: str) -> None:
    with pytest.raises(SchemaUnusable):
        avro_record(text)


def test_types_inside_are_found_by_their_names_in_the_namespace_around() -> None:
    side = {"type": "enum", "name": "Side", "symbols": ["BUY"]}
    found = avro_record(record(a=side, tree=TREE, b={"type": "array", "items": "Side"}, c="a.b.Side"))
    items, tree = found.fields["b"].element, found.fields["tree"]
    assert (items and items.kind, found.fields["c"].kind) == ("text", "text")
    assert list(tree.fields["left"].fields["left"].fields) == ["left"]


BOX = {"type": "record", "name": "Box", "namespace": "x", "fields": [{"name": "size", "type": "Size"}]}
SIZE = {"type": "enum", "name": "x.Size", "symbols": ["S"]}


def referring(schema: Any, *references: Any) -> str:
    return json.dumps({"references": references, "schema": schema})


def test_types_of_the_schemas_that_it_refers_to_are_known() -> None:
    fields = {"boxes": {"type": "map", "values": ["null", "x.Box"]}, "size": "x.Size"}
    found = avro_record(referring(json.loads(record(**fields)), SIZE, BOX))
    boxes = found.fields["boxes"].element
    assert (boxes and boxes.fields["size"].kind, found.fields["size"].kind) == ("text", "text")


def test_type_that_no_schema_defines_is_named() -> None:
    with pytest.raises(SchemaUnusable, match=r"x\.Size"):
        avro_record(referring(BOX, TREE))


def test_type_that_lies_in_itself_is_found_at_any_depth() -> None:
    twice = {"type": "record", "name": "Twice", "fields": [{"name": name, "type": "long"} for name in "ab"]}
    assert avro_record(record(a=twice, b="a.b.Twice", c={"type": "array", "items": "Twice"})).is_recursive is False
    assert avro_record(record(a=twice, b=["null", {"type": "map", "values": TREE}])).is_recursive
    assert avro_record(schema_text(TREE)).is_recursive


def test_contract_reads_both_schemas(contract: Contract) -> None:
    assert [contract.payload.unread(contract, schema) for schema in SCHEMAS.values()] == [[], []]


def test_contract_names_what_it_cannot_read_of_a_schema(contract: Contract) -> None:
    kinds = {"tradedAt": "long", "quantity": ["null", "string"], "price": "float", "live": ["int", "boolean"]}
    assert contract.payload.unread(contract, RegisteredSchema(3, "AVRO", record(**kinds))) == [
        "trade_id is required, and the schema has no field trade_id",
        "traded_at is of type timestamp, and field tradedAt of the schema is integer",
        "quantity is of type int, and field quantity of the schema is text",
        "live is of type boolean, and field live of the schema is union of integer, boolean",
    ]
    assert contract.payload.unread(contract, RegisteredSchema(4, "JSON", "{}")) == [
        "the schema is of type JSON, the contract's format is avro"
    ]


def test_payloads_are_shown_as_json() -> None:
    first, second = encoded(FIRST, first_trade(1), 1), encoded(SECOND, second_trade(2), 2)
    text = AvroFormat().text
    assert json.loads(text(first, SCHEMAS) or "")["tradedAt"] == "2026-11-30T12:00:01.123000Z"
    assert json.loads(shown_payload(second, SCHEMAS) or b"")["price"] == "10.50"
    assert shown_payload(first[:-1], SCHEMAS) == first[:-1]
    assert shown_payload(first + b"\0", SCHEMAS) == first + b"\0"
    assert JsonSchemaFormat().text(framed(9, b'{"a": 1}'), SCHEMAS) == '{"a": 1}'
    assert (text(b"\xff", SCHEMAS), shown_payload(None, SCHEMAS)) == (None, None)


def test_json_record_is_written_by_the_schema_of_the_contract(contract: Contract) -> None:
    text = contract_schema(contract)
    encoding = avro_encoding(contract, text, 5)
    line = b'{"trade_id": "t1", "tradedAt": "2026-11-30T12:00:01.5Z", "quantity": 3, "price": 1.25, "live": true}'
    value = encoding.encoded(1, line)
    assert schema_id(value) == 5
    assert json.loads(AvroFormat().text(value, {5: RegisteredSchema(5, "AVRO", text)}) or "") == {
        **{"trade_id": "t1", "tradedAt": "2026-11-30T12:00:01.500000Z", "quantity": 3, "price": "1.2500"},
        **{"side": None, "settled_on": None, "venue": None, "note": None, "live": True},
    }
    assert contract.payload.unread(contract, RegisteredSchema(5, "AVRO", text)) == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "line 7"),
        (b"[]", "not a JSON object"),
        (b'{"trade_id": "t"}', "tradedAt"),
        (b'{"tradeId": "t"}', "no field tradeId"),
        (b'{"trade_id": "t", "tradedAt": "yesterday", "quantity": 1}', 'tradedAt is "yesterday", no timestamp'),
        (b'{"trade_id": "t", "tradedAt": "2026-11-30T12:00:01Z", "quantity": "x"}', "quantity"),
        (b'{"trade_id": "t", "tradedAt": "2026-11-30T12:00:01Z", "quantity": 1, "price": 0.00001}', "Scale"),
    ],
)
def test_line_that_is_no_record_of_the_schema_is_named(contract: Contract, line: bytes, why: str) -> None:
    with raises(Refused, "record-not-encodable", match=why) as refused:
        avro_encoding(contract, contract_schema(contract), 5).encoded(7, line)
    assert refused.value.facts["line"] == 7


def test_unknown_format_is_refused_with_file_line_key_and_allowed_values(tmp_path: Path) -> None:
    folder = trades_folder(tmp_path)
    (folder / "contract.yaml").write_text(CONTRACT.replace("value: avro", "value: arvo"), "utf-8")
    with pytest.raises(DeclarationRefused) as refused:
        load_contract(folder)
    (problem,) = refused.value.problems
    assert str(problem).startswith(f"{folder}/contract.yaml:13: schema[0].customProperties[0].value: ")
    assert all(name in str(problem) for name in ("json", "avro", "json-schema", "arvo"))
