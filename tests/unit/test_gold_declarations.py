"""Declarations of measures and sessions are validated with file, line and key."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from include.declare.dataset import declared_dataset
from include.declare.dataset_checks import dataset_problems
from include.declare.gold import AdditiveGold, LatestGold
from include.declare.windows import Window, parsed_size
from include.ground.settings import CLONE, Settings

TAILS = "tails: {approx_distinct: tailnum}"
REFUSED = {
    "tails: {top_k: tailnum}": ("tails.top_k", "must have value and k"),
    "tails: {top_k: {value: tailnum, k: 0}}": ("tails", "greater than or equal to 1"),
    "tails: {top_k: {value: tailnum, k: 3, by: x}}": ("tails.top_k", "must have value and k"),
    "tails: {top_k: {value: tailnum, k: 3, weight: mass}}": ("tails.top_k.weight", "'mass' is not a column"),
    "tails: {top_k: {value: tail_num, k: 3}}": ("tails.top_k.value", "'tail_num' is not a column"),
    "tails: {min_by: {value: tailnum, by: distanc}}": ("tails.min_by.by", "'distanc' is not a column"),
    "tails: {max_by: {value: tailnum}}": ("tails.max_by", "must have value and by"),
    "tails: {approx_quantile: {value: distance, at: 95}}": ("tails", "less than or equal to 1"),
    "tails: {histogram: {value: distance, bounds: []}}": ("tails.histogram.bounds", "at least one number"),
    "tails: {histogram: {value: distance, bounds: [5, 5]}}": ("tails.histogram.bounds", "must ascend"),
    "tails: {ratio: {of: delayed, to: worst_departure_delay}}": ("tails.ratio.to", "must be a count or sum"),
    "tails: {ratio: {of: delay, to: departed}}": ("tails.ratio.of", "is 'delay'"),
    "tails: {histogram: {value: distance, bounds: [5, .inf]}}": ("tails", "finite number"),
    "tails: {sum: ''}": ("tails.sum", "must be one SQL expression"),
    "tails: {min_by: {value: tailnum, by: ''}}": ("tails.min_by.by", "must be one SQL expression"),
    "tails: {count_distinct: max(tailnum)}": ("tails.count_distinct", "an expression of one row"),
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings with a copy of the project's datasets."""
    folder = tmp_path / "datasets"
    shutil.copytree(CLONE / "include" / "datasets", folder, ignore=shutil.ignore_patterns("__pycache__"))
    return Settings(state=tmp_path / "state", datasets=folder)


@pytest.fixture
def flights(settings: Settings) -> Path:
    """Return the folder of `flights`."""
    return settings.datasets / "flights"


def declare(folder: Path, measure: str) -> int:
    """Replace the measure `tails`; return its line."""
    path = folder / "pipeline.yaml"
    lines = path.read_text().splitlines()
    number = next(n for n, line in enumerate(lines) if TAILS in line)
    lines[number] = lines[number].replace(TAILS, measure)
    path.write_text("\n".join(lines) + "\n")
    return number + 1


@pytest.mark.parametrize("measure", REFUSED)
def test_wrong_measure_is_refused_with_line_and_key(settings: Settings, flights: Path, measure: str) -> None:
    line, (key, words) = declare(flights, measure), REFUSED[measure]
    (problem,) = dataset_problems(settings, "flights")
    assert (problem.line, problem.key) == (line, f"gold.carrier_hours.measures.{key}")
    assert words in problem.why


def test_first_and_last_are_by_event_time(settings: Settings, flights: Path) -> None:
    declare(flights, "tails: {last: tailnum}")
    assert dataset_problems(settings, "flights") == []
    gold = declared_dataset(settings, "flights").pipeline.gold[0]
    assert isinstance(gold, AdditiveGold)
    assert next(each.by for each in gold.measures if each.name == "tails") == "occurred_at"


HOUR = "window: {column: scheduled_departure, size: 1 hour, as: hour}"
SESSIONS = {
    "session: {column: scheduled_departure, gap: 0 seconds}": ("session.gap", "at least 1 second"),
    "session: {column: planned, gap: 1 hour}": ("session.column", "'planned' is not a column"),
    "session: {column: carrier, gap: 1 hour}": ("session.column", "must be a timestamp"),
    "session: {column: scheduled_departure, gap: 1 hour, start: origin}": ("session", "origin is a key as well"),
    "session: {column: scheduled_departure, gap: 1 hour, end: session_start}": ("session.end", "is the start as well"),
    "session: {column: scheduled_departure, gap: 1 hour, start: Since}": ("session.start", "lower-case letters"),
    f"{HOUR}\n    session: {{column: scheduled_departure, gap: 1 hour}}": ("session", "cannot have a window as well"),
}


@pytest.mark.parametrize("session", SESSIONS)
def test_wrong_session_is_refused_with_its_key(settings: Settings, flights: Path, session: str) -> None:
    path, (key, words) = flights / "pipeline.yaml", SESSIONS[session]
    path.write_text(
        path.read_text().replace(HOUR, session).replace("    partition: date_format(hour, 'yyyy-MM')\n", "")
    )
    problems = dataset_problems(settings, "flights")
    assert [problem.key for problem in problems if words in problem.why] == [f"gold.carrier_hours.{key}"], problems


CLOSING = "refresh: on_close"
REFRESHES = {
    "refresh: hourly": ("refresh", "must be every_run, on_close or like 'every 1 minute'"),
    "refresh: every minute": ("refresh", "must be a count and second"),
    "refresh: every 0 seconds": ("refresh", "at least 'every 1 second'"),
    "refresh: [every_run]": ("refresh", "must be every_run"),
    CLOSING: (
        "refresh",
        "its windows are of scheduled_departure, and the watermark that closes them is of occurred_at",
    ),
}


@pytest.mark.parametrize("refresh", REFRESHES)
def test_wrong_refresh_is_refused_with_line_and_key(settings: Settings, flights: Path, refresh: str) -> None:
    path, (key, words) = flights / "pipeline.yaml", REFRESHES[refresh]
    path.write_text(path.read_text().replace(HOUR, f"{HOUR}\n    {refresh}"))
    (problem,) = dataset_problems(settings, "flights")
    line = path.read_text().splitlines().index(f"    {refresh}") + 1
    assert (problem.line, problem.key) == (line, f"gold.carrier_hours.{key}")
    assert words in problem.why


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", timedelta(minutes=5)),
        ("idle: 90 seconds", timedelta(seconds=90)),
        ("idle: 2 hours", timedelta(hours=2)),
        ("idle: never", None),
    ],
)
def test_idle_is_a_duration_or_never(settings: Settings, flights: Path, text: str, expected: timedelta | None) -> None:
    path = flights / "pipeline.yaml"
    path.write_text(f"{path.read_text()}\n{text}\n")
    assert dataset_problems(settings, "flights") == []
    assert declared_dataset(settings, "flights").pipeline.idle == expected


@pytest.mark.parametrize(
    "value", ["no", "5", "5 minute s", "0 seconds", "-1 hours", "'Never'", "[never]", "", "1 month"]
)
def test_wrong_idle_is_refused_with_line_and_key(settings: Settings, flights: Path, value: str) -> None:
    path = flights / "pipeline.yaml"
    path.write_text(f"{path.read_text().rstrip()}\nidle: {value}\n")
    (problem,) = dataset_problems(settings, "flights")
    assert (problem.line, problem.key) == (len(path.read_text().splitlines()), "idle")
    assert "never" in problem.why


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("sleep_after: never", None),
        ("sleep_after: 10 minutes", timedelta(minutes=10)),
        ("idle: never\nsleep_after: 1 second", timedelta(seconds=1)),
    ],
)
def test_driver_sleeps_after_a_duration_or_never(
    settings: Settings, flights: Path, text: str, expected: timedelta | None
) -> None:
    path = flights / "pipeline.yaml"
    path.write_text(f"{path.read_text()}\n{text}\n")
    assert dataset_problems(settings, "flights") == []
    assert declared_dataset(settings, "flights").pipeline.sleep_after == expected


def test_driver_must_not_sleep_before_a_quiet_partition_is_idle(settings: Settings, flights: Path) -> None:
    path = flights / "pipeline.yaml"
    path.write_text(f"{path.read_text().rstrip()}\nsleep_after: 5 minutes\n")
    (problem,) = dataset_problems(settings, "flights")
    assert problem.key == "sleep_after"
    assert "must be longer than `idle`" in problem.why


def test_table_of_keys_alone_never_closes(settings: Settings, flights: Path) -> None:
    path, keys = flights / "pipeline.yaml", "    keys: [flight_id]\n"
    path.write_text(path.read_text().replace(keys, f"{keys}    {CLOSING}\n"))
    (problem,) = dataset_problems(settings, "flights")
    assert problem.key == "gold.flight_status.refresh"
    assert "only a window or a session closes" in problem.why


def test_interval_is_read_as_a_duration(settings: Settings, flights: Path) -> None:
    path = flights / "pipeline.yaml"
    path.write_text(path.read_text().replace(HOUR, f"{HOUR}\n    refresh: every 90 seconds"))
    assert dataset_problems(settings, "flights") == []
    assert declared_dataset(settings, "flights").pipeline.gold[0].refresh == timedelta(seconds=90)


@pytest.mark.parametrize(
    ("partition", "by_month"),
    [
        ("", True),
        ("date_format(hour, 'yyyy-MM')", True),
        ("date_format(`hour`,'yyyy-MM')", True),
        ("date_format(hour, 'yyyy')", False),
        ("date_format(hour, 'yyyy -MM')", False),
        ("date_format(at, 'yyyy-MM')", False),
        ("'all'", False),
    ],
)
def test_partition_is_the_month_of_the_window_by_default_and_if_it_is_declared_so(
    partition: str, by_month: bool
) -> None:
    hours = Window("at", parsed_size("1 hour"), "hour")
    assert AdditiveGold("hours", partition, hours, ("user",), ()).is_partitioned_by_month == by_month
    assert not AdditiveGold("users", partition, None, ("user",), ()).is_partitioned_by_month


def test_latest_table_has_no_month() -> None:
    assert not LatestGold("users", keys=("user",), order_by=("at",)).is_partitioned_by_month
