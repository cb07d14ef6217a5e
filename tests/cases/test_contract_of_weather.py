"""Golden cases of decimals: what becomes of a number that must have at most seven digits, two of them decimals."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from batch_snapshots import BatchSnapshots, TakeBatches
from small_events import observation

# Literal of `temp` → the value it has in silver.
ACCEPTED: dict[str, Decimal | None] = {
    "39.02": Decimal("39.02"),
    "39": Decimal("39.00"),
    "0": Decimal("0.00"),
    "-0": Decimal("0.00"),
    "-0.0": Decimal("0.00"),
    "-0.00": Decimal("0.00"),
    "-17.5": Decimal("-17.50"),
    "39.020": Decimal("39.02"),
    "39.0200000000000000000": Decimal("39.02"),
    "3.902e1": Decimal("39.02"),
    "3902E-2": Decimal("39.02"),
    "0.3902e+2": Decimal("39.02"),
    "140": Decimal("140.00"),
    "-80.00": Decimal("-80.00"),
    "null": None,
}
# Literal of `temp` → the reason.
REJECTED = {
    "1.005": "scale",
    "-0.001": "scale",
    "39.0200000000000000001": "scale",
    "1005e-3": "scale",
    '"1.25"': "type",
    '""': "type",
    "true": "type",
    "[1]": "type",
    '{"c":1}': "type",
    "1e400": "out_of_range",
    "-1e400": "out_of_range",
    "100000": "out_of_range",
    "1e6": "out_of_range",
    "99999.999": "out_of_range",
    "140.01": "range",
    "-80.01": "range",
    "99999.99": "range",
    "1e3": "range",
    "01.5": "malformed",
    "1.": "malformed",
    ".5": "malformed",
    "+1": "malformed",
    "1,5": "malformed",
    "0x10": "malformed",
    "NaN": "out_of_range",
    "-Infinity": "out_of_range",
}


def hour(place: int) -> str:
    return f"2013-02-{1 + place // 24:02}T{place % 24:02}"


@pytest.fixture(scope="module")
def snapshots(take_batches: TakeBatches) -> BatchSnapshots:
    literals = [*ACCEPTED, *REJECTED]
    return take_batches("weather", [[observation(hour(place), temp=literal) for place, literal in enumerate(literals)]])


@pytest.fixture(scope="module")
def verdicts(snapshots: BatchSnapshots) -> dict[str, Any]:
    """Literal → the value in silver, or the list of reasons."""
    literals = [*ACCEPTED, *REJECTED]
    silver = {literals[row["_offset"] - 100]: row["temp"] for row in snapshots.release.silver().to_dicts()}
    rejected = snapshots.release.rejected().to_dicts()
    reasons = {literals[row["_offset"] - 100]: [r["rule"] for r in row["reasons"]] for row in rejected}
    assert silver.keys().isdisjoint(reasons)
    return silver | reasons


@pytest.mark.parametrize("literal", ACCEPTED)
def test_valid_number_is_accepted_with_its_value(literal: str, verdicts: dict[str, Any]) -> None:
    assert verdicts[literal] == ACCEPTED[literal]


@pytest.mark.parametrize("literal", REJECTED)
def test_invalid_number_is_rejected_with_its_reason(literal: str, verdicts: dict[str, Any]) -> None:
    assert verdicts[literal] == [REJECTED[literal]]


def test_silver_has_no_negative_zero(snapshots: BatchSnapshots) -> None:
    zeros = snapshots.release.silver().filter(temp=Decimal(0))["temp"].to_list()
    assert [str(zero) for zero in zeros] == ["0.00"] * 4
