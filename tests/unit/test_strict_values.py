"""Values that people type are parsed strictly: a wrong one is refused with exit code 2 and never read as another."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from include.cli.main import app
from include.ground import strict_values

D = ("--dataset", "flights")
REPLAY, BACKFILL = ("replay", "plan", *D), ("backfill", "plan", *D)
NESTED = "[" * 5000
RANGE = ("--from", "2013-01-01", "--to", "2013-01-02")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((*REPLAY, "--offsets", '{"0":"12"}'), "[start, end]"),
        ((*REPLAY, "--offsets", '{"0":[0.9,2.7]}'), "whole numbers"),
        ((*REPLAY, "--offsets", '{"0":[5,2]}'), "[5, 2] is empty"),
        ((*REPLAY, "--offsets", '{"0":[5,5]}'), "[5, 5] is empty"),
        ((*REPLAY, "--offsets", '{"0":[1e400,3]}'), "whole numbers"),
        ((*REPLAY, "--offsets", '{"0":[true,3]}'), "whole numbers"),
        ((*REPLAY, "--offsets", '{"0":[-1,3]}'), "whole numbers"),
        ((*REPLAY, "--offsets", '{"0":[1,99999999999999999999]}'), "whole numbers"),
        ((*REPLAY, "--offsets", '{"0":[1,2],"0":[7,9]}'), "twice"),
        ((*REPLAY, "--offsets", '{"٣":[1,2]}'), "partition"),
        ((*REPLAY, "--offsets", '{"4294967296":[1,2]}'), "partition"),
        ((*REPLAY, "--offsets", NESTED), "not JSON"),
        ((*REPLAY, "--batches", "²..³"), "3..7"),
        ((*REPLAY, "--batches", "7..3"), "3..7"),
        ((*REPLAY, "--batches", "0..99999999999999999999"), "3..7"),
        ((*REPLAY, "--batches", "0..3", "--threshold", "nan"), "between 0 and 1"),
        ((*REPLAY, "--batches", "0..3", "--threshold", "1e400"), "between 0 and 1"),
        ((*BACKFILL, "--from", "0001-01-01T00:00:00+05:00", "--to", "2013-01-02"), "outside the years 1 to 9999"),
        ((*BACKFILL, "--from", "2013-01-01", "--to", "9999-12-31T23:00:00-05:00"), "outside the years 1 to 9999"),
        ((*BACKFILL, *RANGE, "--threshold", "-nan"), "between 0 and 1"),
        (("release", "plan", *D, "--threshold", "inf"), "between 0 and 1"),
        (("release", "plan", *D, "--from-batch", "99999999999999999999"), "from-batch"),
        (("rejected", "list", "--from", "0001-01-01T00:00:00+05:00"), "outside the years 1 to 9999"),
        (("rejected", "list", "--offsets", '{"0":"12"}'), "[start, end]"),
        (("rejected", "show", *D, "0", "99999999999999999999"), "less than or equal to"),
        (
            ("rejected", "fix", *D, "0", "99999999999999999999", "--why", "w", "--payload", "{}"),
            "less than or equal to",
        ),
        (("rejected", "fix", *D, "99999999999", "1", "--why", "w", "--payload", "{}"), "less than or equal to"),
        (("rejected", "fix", *D, "0", "1", "--why", "w", "--payload-file", "missing"), "does not exist"),
        (("rejected", "reinstate", *D, "--reason", "x", "--threshold", "nan"), "between 0 and 1"),
    ],
)
def test_wrong_value_is_refused_with_exit_code_2(arguments: tuple[str, ...], why: str) -> None:
    ended = CliRunner().invoke(app, arguments, env={"COLUMNS": "400", "TERM": "dumb"})
    assert (ended.exit_code, type(ended.exception)) == (2, SystemExit), ended.exception
    assert why in ended.output


def test_right_values_are_read_as_written() -> None:
    assert strict_values.offset_ranges('{"0": [1, 2], "1": [5, 9]}') == {0: (1, 2), 1: (5, 9)}
    assert strict_values.batch_range("3..7") == strict_values.BatchRange(3, 7)
    assert strict_values.utc_time("2013-03-01T12:00:00+02:00") == datetime(2013, 3, 1, 10, tzinfo=UTC)
    assert strict_values.utc_time("2013-03-01") == datetime(2013, 3, 1, tzinfo=UTC)
    assert (strict_values.share("0.5%"), strict_values.share(0.25), strict_values.share("1")) == (0.005, 0.25, 1.0)


@pytest.mark.parametrize("text", ["", "3", "3..", "..4", "7..3", "a..b", "-1..2", "1...2"])
def test_malformed_batch_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a range of batches"):
        strict_values.batch_range(text)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"0": 5}', '{"a": [1, 2]}', '{"0": [1]}', '{"0": [1, 2, 3]}', "null"]
)
def test_malformed_offsets_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not JSON|object|names no partition|start, end|partition"):
        strict_values.offset_ranges(text)
