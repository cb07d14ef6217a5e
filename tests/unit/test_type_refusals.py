"""Types in `contract.yaml` that are refused: the refusal names file, line, key and what is accepted."""

from __future__ import annotations

import pytest
from test_declaration_refusals import CONTRACT, OPTIONS, Row, assert_refused, distance, flight
from test_declaration_refusals import settings as settings

from include.ground.settings import Settings

NUMBER = "logicalType: integer\n        required: true\n        logicalTypeOptions: {minimum: 1, maximum: 12000}"


def number(physical: str, words: str) -> Row:
    new = f"logicalType: number\n        physicalType: {physical}\n        required: true"
    return Row(CONTRACT, NUMBER, new, "[10].physicalType", words, f"physicalType: {physical}")


ROWS = {
    "decimal of 99 digits": number("decimal(99,2)", "1 <= p <= 38 and s <= p"),
    "decimal with more places than digits": number("decimal(5,9)", "s <= p"),
    "decimal of text": number("decimal(x)", "must be a type of logicalType number (decimal(p,s), "),
    "unknown physical type": distance("physicalType: bigit", "physicalType", "bigint, long, int64, smallint"),
    "format of other numbers": flight("{format: u32}", "format", "is not read of integer: 'u32'; formats: i32, i64"),
    "exclusive bound": flight("{exclusiveMinimum: 1}", "exclusiveMinimum", "is not a known key"),
    "unique column that is not the identity": distance("unique: true", "unique", "expect_column_values_to_be_unique"),
    "identity of a double": Row(
        CONTRACT,
        "- name: event_id\n        logicalType: string",
        "- name: event_id\n        logicalType: number\n        physicalType: double",
        "[0].primaryKey",
        "a double is no identity",
        "primaryKey: true",
    ),
    "not a number": Row(
        CONTRACT,
        NUMBER,
        "logicalType: number\n        logicalTypeOptions: {minimum: .nan}\n        required: true",
        f"[10].{OPTIONS}.minimum",
        "must be a finite number, is nan",
        "{minimum: .nan}",
    ),
}


@pytest.mark.parametrize("case", ROWS)
def test_type_is_refused_with_what_is_accepted(settings: Settings, case: str) -> None:  # noqa: F811
    assert_refused(settings, ROWS[case])
