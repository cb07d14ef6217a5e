"""The plain form's regular expression, which Java and Python read alike."""

from __future__ import annotations

import re

import pytest

from include.catalog.contract import Column, Contract
from spark_jobs.contract.plain_form import plain_form


def form(column: Column) -> re.Pattern[str]:
    return re.compile(plain_form(Contract("d", "1", (column,), (), ())).replace(r"\z", r"\Z"))


@pytest.mark.parametrize(
    ("precision", "scale", "plain", "other"),
    [
        (3, 0, ["0", "-7", "999"], ["1000", "1.0", "01"]),
        (3, 3, ["0", "0.1", "-0.999"], ["1", "0.1234", "1.5"]),
        (3, 2, ["9", "9.99", "0.5"], ["10", "9.999"]),
        (38, 0, ["9" * 38], ["9" * 39]),
    ],
)
def test_decimals_of_any_precision_and_scale_have_a_plain_form(
    precision: int, scale: int, plain: list[str], other: list[str]
) -> None:
    found = form(Column("n", "number", required=True, precision=precision, scale=scale))
    assert [text for text in [*plain, *other] if found.match(f'{{"n":{text}}}')] == plain


def test_field_is_matched_by_its_name_in_the_records() -> None:
    found = form(Column("client_ip", "string", required=True, physical_name="clientIp"))
    assert found.match('{"clientIp":"::1"}')
    assert not found.match('{"client_ip":"::1"}')
