"""The list of writers' schemas: only appended, read up to a length, and whole after a crash."""

from __future__ import annotations

import json

import pytest
from error_codes import raises

from include.declare.writer_schemas import keep_schemas, known_schemas, schemas_size
from include.ground.errors import Terminal
from include.ground.paths import writer_schemas_path
from include.ground.schema_registry import UNKNOWN_TYPE, RegisteredSchema
from include.ground.settings import Settings

ONE, TWO = RegisteredSchema(1, "AVRO", '"é"'), RegisteredSchema(2, "JSON", "{}")


def test_schemas_are_kept_once_and_read_up_to_a_length(settings: Settings) -> None:
    assert (known_schemas(settings, "d"), schemas_size(settings, "d")) == ({}, 0)
    keep_schemas(settings, "d", [ONE])
    size = schemas_size(settings, "d")
    keep_schemas(settings, "d", [RegisteredSchema(1, "AVRO", "another"), TWO])
    assert known_schemas(settings, "d") == {1: ONE, 2: TWO}
    assert known_schemas(settings, "d", size) == {1: ONE}


def test_schema_of_an_id_that_was_unknown_is_added_once(settings: Settings) -> None:
    unknown = RegisteredSchema(1, UNKNOWN_TYPE, "")
    for schemas in ([unknown], [unknown, ONE], [unknown], [RegisteredSchema(1, "AVRO", "another")]):
        keep_schemas(settings, "d", schemas)
    assert known_schemas(settings, "d") == {1: ONE}
    assert len(writer_schemas_path(settings, "d").read_bytes().splitlines()) == 2


def test_line_that_a_crash_cut_off_was_not_written(settings: Settings) -> None:
    keep_schemas(settings, "d", [ONE])
    path = writer_schemas_path(settings, "d")
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"id": 2, "ty')
    assert known_schemas(settings, "d") == {1: ONE}
    assert schemas_size(settings, "d") == len(whole)
    keep_schemas(settings, "d", [TWO])
    assert known_schemas(settings, "d") == {1: ONE, 2: TWO}


@pytest.mark.parametrize("line", ["no JSON", "[]", '{"id": "x"}', json.dumps({"id": "x", "type": "", "schema": ""})])
def test_edited_list_is_refused_with_its_line(settings: Settings, line: str) -> None:
    keep_schemas(settings, "d", [ONE])
    with writer_schemas_path(settings, "d").open("a") as file:
        file.write(f"{line}\n")
    with raises(Terminal, "writer-schemas-unreadable", match="line 2"):
        known_schemas(settings, "d")
