"""Times that producers choose: what counts as an arrival, and what Kafka's number is."""

from __future__ import annotations

import pytest

from include.ground.record_coordinates import (
    AFTER,
    BEFORE,
    FIRST_MS,
    HEADER,
    LAST_MS,
    arrivals,
    is_replaced,
    kafka_time,
)

COMMITTED, NOW = 1_700_000_000_000, 1_700_000_600_000
HOUR = 3_600_000


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ((COMMITTED - HOUR, COMMITTED - 5), (COMMITTED - HOUR, COMMITTED - 5)),
        ((COMMITTED + 5, NOW), (COMMITTED + 5, NOW)),
        ((FIRST_MS - 1, LAST_MS), (COMMITTED, COMMITTED)),
        ((-1, COMMITTED - 5), (COMMITTED - 5, COMMITTED)),
        ((COMMITTED // 1000, COMMITTED // 1000), (COMMITTED, COMMITTED)),
        ((COMMITTED - 5, NOW + 1), (COMMITTED - 5, COMMITTED)),
    ],
)
def test_time_that_no_record_can_have_arrived_at_counts_as_the_commit(
    times: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert arrivals(times, COMMITTED, NOW) == expected


@pytest.mark.parametrize("number", [LAST_MS + 1, 2**63 - 1])
def test_number_of_a_replaced_time_is_that_of_the_last_header(number: int) -> None:
    own = {"key": HEADER, "value": b"5"}
    assert kafka_time(AFTER, [own, {"key": HEADER, "value": b"%d" % number}]) == number


@pytest.mark.parametrize("time", [FIRST_MS, -1, 0, LAST_MS])
def test_time_of_the_calendar_is_its_own_number_whatever_the_headers(time: int) -> None:
    assert not is_replaced(time * 1000)
    assert kafka_time(time * 1000, [{"key": HEADER, "value": b"5"}]) == time
    assert all(map(is_replaced, (BEFORE, AFTER)))


@pytest.mark.parametrize("time", [-62_135_596_800_000, FIRST_MS - 1, LAST_MS + 1, 253_402_300_799_999])
def test_time_at_the_ends_of_the_calendar_that_was_stored_as_it_is_stays_its_own_number(time: int) -> None:
    """Bronze tables of earlier versions have such times; no header of theirs is the platform's."""
    assert not is_replaced(time * 1000)
    assert kafka_time(time * 1000, [{"key": "trace", "value": b"\xff"}]) == time
    assert kafka_time(time * 1000, [{"key": HEADER, "value": b"5"}]) == time
