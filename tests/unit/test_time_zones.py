"""Time zones: the offsets of the standard library, from one table, in Python and in DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import duckdb
import pyarrow as pa
import pytest

from include.declare.time_zones import EPOCH, SECOND, TimeZone, installed_zone, zone_names
from include.declare.windows import Window, parsed_size, windowed_sql
from tests.unit.zone_moments import chosen_zones, local_days, moments, standard_zone

ALL = (-(10**12), 10**12)


def inside(times: list[datetime]) -> Iterator[datetime]:
    """Yield the moments whose local time lies in the calendar, as the standard library needs."""
    return (at for at in times if datetime(1, 1, 3, tzinfo=UTC) < at < datetime(9999, 12, 30, tzinfo=UTC))


each_step = pytest.mark.parametrize(
    "step", [pytest.param(8, id="some"), pytest.param(1, id="all", marks=pytest.mark.extended)]
)


@each_step
def test_local_times_are_those_of_the_standard_library_at_every_transition(step: int) -> None:
    checked = 0
    for zone in chosen_zones(step):
        standard = standard_zone(zone.name)
        for at in inside(moments(zone, *ALL)):
            assert zone.local_time(at) == at.astimezone(standard).replace(tzinfo=UTC), (zone.name, at)
            checked += 1
    assert checked > 300_000 / step


@each_step
def test_moments_of_repeated_and_skipped_local_times_are_those_of_the_standard_library(step: int) -> None:
    for zone in chosen_zones(step):
        standard = standard_zone(zone.name)
        for at in inside(moments(zone)):
            for local in (at.astimezone(standard) + shift for shift in (timedelta(), timedelta(minutes=30))):
                both = sorted(local.replace(fold=fold).astimezone(UTC) for fold in (0, 1))
                wall = local.replace(tzinfo=UTC)
                assert [zone.earliest_moment(wall), zone.latest_moment(wall)] == both, (zone.name, wall)


def test_duckdb_and_python_have_the_same_windows_at_the_transitions_of_zones() -> None:
    database = duckdb.connect()
    database.execute("set TimeZone = 'UTC'")
    for window in local_days(chosen_zones(step=8)):
        times = moments(window.time_zone)
        database.register("silver", pa.table({"at": pa.array(times, pa.timestamp("us", tz="UTC"))}))
        bounds = ", ".join(f"epoch_us({each('day')})" for each in (window.begin_sql, window.end_sql))
        found = database.execute(f"select day, {bounds} from ({windowed_sql(window, 'silver')})").fetchall()
        expected = []
        for (start,) in (window.starts(at) for at in times):
            edges = (window.begin(start), window.end(start))
            expected.append((start, *((edge - EPOCH) // timedelta(microseconds=1) for edge in edges)))
        assert found == expected, window.time_zone.name


def test_a_row_without_a_time_has_no_local_time() -> None:
    (window,) = local_days([installed_zone("Europe/Paris")])
    silver = "(select null::timestamptz as at)"
    utc = Window("at", parsed_size("1 day"), "day")
    found = [duckdb.execute(f"select day from ({windowed_sql(each, silver)})").fetchall() for each in (window, utc)]
    assert found[0] == found[1]


def test_rules_that_changed_lately_are_those_of_the_database_and_not_of_the_system() -> None:
    casablanca = Window("at", parsed_size("1 day"), "day", time_zone="Africa/Casablanca")  # type: ignore[arg-type]
    assert casablanca.starts(datetime(2026, 11, 15, 23, 30, tzinfo=UTC)) == [date(2026, 11, 15)]


def test_offsets_repeat_after_400_years_for_ever() -> None:
    paris = installed_zone("Europe/Paris")
    summer = [datetime(year, 7, 1, tzinfo=UTC) for year in range(2050, 9999, 400)]
    assert {paris.local_time(at) - at for at in summer} == {timedelta(hours=2)}
    at = paris.by_moment.at
    assert all(one < other for one, other in pairwise(at))
    assert len(at) < 1500


@pytest.mark.parametrize(
    ("rule", "summer"),
    [
        ("<+0330>-3:30", None),
        ("A3B,M3.2.0/-1,M11.1.0/25:30:15", -7200),
        ("IST-1GMT0,M10.5.0,M3.5.0/1", 3600),
    ],
)
def test_rules_are_read_as_posix_writes_them(rule: str, summer: int | None) -> None:
    zone = TimeZone("X", -10800 if rule.startswith("A") else 3600, (), rule)
    found = zone.by_moment.of(int(datetime(2050, 7, 1, tzinfo=UTC).timestamp()) * SECOND)
    assert found == (summer if summer is not None else zone.offset) * SECOND


def test_an_unknown_zone_is_refused_with_near_names() -> None:
    assert "UTC" in zone_names()
    for wrong, near in {"Europe/Pari": "Europe/Paris", "paris": "Europe/Paris", "New York": "America/New_York"}.items():
        with pytest.raises(ValueError, match=near):
            installed_zone(wrong)
