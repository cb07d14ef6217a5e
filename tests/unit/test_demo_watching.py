"""The demo's wait: it ends when all is published, a process is lost, refine stays halted, or progress stalls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO

import duckdb
import pytest
from demo.command import live_table, progress_display, progress_line, score_table, verdict
from demo.feed import FeedProgress
from demo.questions import LATEST_DESTINATION, QUESTIONS, RAIN, WORST_AIRLINE, WORST_DAY, WORST_DEPARTURES
from demo.watch import Rates, RateWindow, Snapshot, StallDetector, watch
from error_codes import raises
from rich.console import Console

from include.ground.errors import Terminal
from include.ground.settings import Settings
from include.observe.progress import Batches, DatasetProgress, Lag, Progress
from include.producers.manifest import KindScore, Score
from include.read.published_sql import tables_mentioned, validate_reading
from include.state.process_states import ProcessState, ProcessStatus
from include.state.streams import DriverStatus

BROKER = ProcessStatus("broker", 1, ProcessState.RUNNING)
STREAM = ProcessStatus("stream:flights", 2, ProcessState.RUNNING)
ALL_SENT = {"flights": FeedProgress("flights", 100, 100, finished=True)}


def flights(
    silver: int, kafka: int = 100, stream: ProcessStatus = STREAM, bronze: int = 100, lag: int | None = None
) -> DatasetProgress:
    """A dataset of which `silver` of 100 records are in silver, the others not validated yet."""
    rows: dict[str, int | None] = {"kafka": kafka, "bronze": bronze, "silver": silver, "rejected": 0, "gold.x": 7}
    behind = kafka - silver if lag is None else lag
    rates: dict[str, float | None] = {}
    return DatasetProgress(
        "flights", stream, "r", False, Batches(1, 1, 1), rates, Lag(behind, 1.5), rows, {"bad_ts": 3}, DriverStatus()
    )


def snapshot(
    at: float, *datasets: DatasetProgress, fed: Mapping[str, FeedProgress] = ALL_SENT, broker: ProcessStatus = BROKER
) -> Snapshot:
    processes = (broker, *(dataset.process for dataset in datasets))
    return Snapshot(at, Progress(datetime(2026, 1, 1, tzinfo=UTC), processes, datasets, ()), fed)


def test_snapshot_is_done_when_all_is_sent_published_and_counted() -> None:
    assert snapshot(0, flights(100)).done
    assert not snapshot(0, flights(99)).done
    assert not snapshot(0, flights(90, lag=0)).done
    assert not snapshot(0, flights(100), fed={"flights": FeedProgress("flights", 99, 100)}).done


def test_snapshot_with_unknown_values_is_not_done() -> None:
    dataset = flights(100)
    assert not snapshot(0, replace(dataset, lag=Lag(None, None))).done
    assert not snapshot(0, replace(dataset, rows=dict(dataset.rows) | {"silver": None, "bronze": None})).done


def test_other_datasets_are_ignored() -> None:
    lost = replace(STREAM, name="stream:other", pid=None, state=ProcessState.FAILED)
    other = replace(flights(0, stream=lost), dataset="other")
    observed = snapshot(0, flights(100), other)
    assert observed.done
    StallDetector(Settings()).check(observed)


@pytest.mark.parametrize("state", [ProcessState.CRASHED, ProcessState.FAILED, ProcessState.STOPPED])
def test_lost_stream_ends_the_wait_with_its_reason(settings: Settings, state: ProcessState) -> None:
    lost = ProcessStatus("stream:flights", None, state, "because of [/this]")
    with raises(Terminal, "stream-lost", match="because of") as caught:
        StallDetector(settings).check(snapshot(0, flights(5, stream=lost)))
    assert caught.value.facts["process"] == lost.name
    assert "stream-flights.log" in caught.value.remedy


def test_lost_broker_ends_the_wait(settings: Settings) -> None:
    lost = ProcessStatus("broker", None, ProcessState.CRASHED, "pid 1 is gone")
    with raises(Terminal, "stream-lost"):
        StallDetector(settings).check(snapshot(0, flights(5), broker=lost))


def test_refine_may_be_halted_for_a_limited_time(settings: Settings) -> None:
    detector = StallDetector(settings, halted_after=45)
    halted = ProcessStatus("stream:flights", 2, ProcessState.HALTED, "a bug")
    detector.check(snapshot(0, flights(5, stream=halted)))
    detector.check(snapshot(44, flights(6, stream=halted)))
    detector.check(snapshot(50, flights(6)))
    detector.check(snapshot(60, flights(7, stream=halted)))
    with raises(Terminal, "refine-halted", match="a bug"):
        detector.check(snapshot(105, flights(8, stream=halted)))


def test_stalled_demo_ends_with_the_missing_records(settings: Settings) -> None:
    detector = StallDetector(settings, stalled_after=120)
    detector.check(snapshot(0, flights(5)))
    detector.check(snapshot(119, flights(5)))
    detector.check(snapshot(130, flights(6)))
    detector.check(snapshot(249, flights(6)))
    with raises(Terminal, "demo-stalled") as caught:
        detector.check(snapshot(250, flights(6)))
    assert caught.value.facts["behind"] == {"flights": 94}


@pytest.mark.parametrize("moved", ["kafka", "bronze", "sent"])
def test_any_changed_count_is_progress(settings: Settings, moved: str) -> None:
    detector = StallDetector(settings, stalled_after=120)
    fed = {"flights": FeedProgress("flights", 1, 100)}
    detector.check(snapshot(0, flights(5), fed=fed))
    now = {
        "kafka": snapshot(119, flights(5, kafka=101), fed=fed),
        "bronze": snapshot(119, flights(5, bronze=101), fed=fed),
        "sent": snapshot(119, flights(5), fed={"flights": FeedProgress("flights", 2, 100)}),
    }
    detector.check(now[moved])
    detector.check(replace(now[moved], at=200))


def test_watch_shows_every_snapshot_and_returns_the_done_one(settings: Settings) -> None:
    snapshots = [
        snapshot(0, flights(5)),
        snapshot(1, flights(50)),
        snapshot(2, flights(100)),
        snapshot(3, flights(100)),
    ]
    shown: list[float] = []
    found = watch(snapshots, StallDetector(settings), lambda observed, rates: shown.append(observed.at), lambda: None)
    assert (found, shown) == (snapshots[2], [0, 1, 2])


def test_watch_raises_the_senders_error(settings: Settings) -> None:
    def failed() -> None:
        raise OSError("no broker")

    with pytest.raises(OSError, match="no broker"):
        watch([snapshot(0, flights(5))], StallDetector(settings), lambda observed, rates: None, failed)


def test_rates_cover_the_last_seconds() -> None:
    recent = RateWindow(seconds=5)
    for second in range(10):
        rates = recent.rates(snapshot(second, flights(10 * second, kafka=100 + second)))
    assert rates.refined["flights"] == pytest.approx(10)
    assert rates.kafka["flights"] == pytest.approx(1)
    for second in range(10, 20):
        rates = recent.rates(snapshot(second, flights(90)))
    assert rates.refined["flights"] == 0


def test_ingested_offsets_of_the_driver_are_shown_and_are_progress(settings: Settings) -> None:
    before = snapshot(0, flights(0, bronze=0))
    after = replace(before, at=119, ingested={"flights": 654_321})
    detector = StallDetector(settings, stalled_after=120)
    detector.check(before)
    detector.check(after)
    detector.check(replace(after, at=200))
    assert "654,321" in printed(live_table(after, Rates({}, {}), 1))
    assert "bronze 654,321" in printed(progress_line(after, Rates({}, {}), 1)).replace("\n", " ")


def printed(renderable: object) -> str:
    out = StringIO()
    Console(file=out, width=80).print(renderable)
    return out.getvalue()


def test_live_table_fits_80_columns_and_names_problems() -> None:
    halted = ProcessStatus("stream:flights", 2, ProcessState.HALTED, "a [/bug]")
    observed = snapshot(12, flights(1_234_567, kafka=2_000_000, stream=halted))
    text = printed(live_table(observed, Rates({"flights": 1000}, {"flights": 98_765.4}), 12))
    for wanted in ("1,234,567", "98,765", "bad_ts", "765,433", "halted, a [/bug]", "after 12 s"):
        assert wanted in text
    assert max(map(len, text.splitlines())) <= 80


def test_progress_without_a_terminal_is_lines_and_a_last_line() -> None:
    out = StringIO()
    with progress_display(Console(file=out, width=80), 0.0, line_every=5) as show:
        for second in range(8):
            show(snapshot(second, flights(5)), Rates({}, {}))
        show(snapshot(8, flights(100)), Rates({}, {}))
    assert [text.split("|")[0].strip() for text in out.getvalue().splitlines()] == ["0 s", "5 s", "8 s"]
    assert "all published" in out.getvalue()


def test_progress_line_escapes_markup() -> None:
    observed = snapshot(1, flights(5, stream=replace(STREAM, state=ProcessState.HALTED, detail="[/x]")))
    assert "[/x]" in printed(progress_line(observed, Rates({}, {}), 1))


KINDS = (
    KindScore("corrupt", "truncated", "malformed", 5, 5, 0, 0),
    KindScore("corrupt", "comment", "malformed", 4, 3, 1, 1),
)


def test_score_table_groups_by_reason_and_names_missed_kinds() -> None:
    text = printed(score_table({"flights": Score(KINDS, 9, 8, 1, 1, 0, 0, ())}))
    assert [int(cell) for cell in text.split("malformed")[1].split()[:3]] == [9, 7, 2]
    assert "comment" in text
    assert "truncated" not in text


def test_verdict_describes_the_score() -> None:
    good = Score(KINDS[:1], 5, 5, 0, 0, 0, 2, ())
    assert "5 injected, 5 found" in verdict("flights", good)
    assert "2 more are in a chunk that was sent twice" in verdict("flights", good)
    assert "none rejected" in verdict("weather", Score((), 0, 0, 0, 0, 0, 0, ()))
    bad = verdict("flights", Score(KINDS, 9, 8, 1, 1, 3, 0, (("flights", 1, 77),)))
    assert "1 missed, 1 for another reason, 3 wrongly rejected" in bad
    assert "flights/1/77" in bad


# --- the questions -----------------------------------------------------------------------------------------------

GOLD = """
create schema gold;
create table gold.carrier_hours as from (values
  (timestamptz '2013-02-08 12:00Z', 'EV', 'JFK', 9000, 8000, 1000, 4000, 160000),
  (timestamptz '2013-02-09 12:00Z', 'EV', 'JFK', 4000, 4000, 0, 1000, 20000),
  (timestamptz '2013-02-09 13:00Z', 'B6', 'JFK', 20000, 20000, 0, 100, 40000),
  (timestamptz '2013-02-09 13:00Z', 'F9', 'JFK', 10, 10, 0, 10, 9000))
  t(hour, carrier, origin, scheduled, departed, cancelled, delayed, departure_delay_minutes);
create table gold.route_days as from (values
  (date '2013-02-08', 'DEN', 9000, 1000, 8000, 1900, 7600, 16000),
  (date '2013-02-09', 'DEN', 24010, 0, 200, 100, 400, 0),
  (date '2013-02-07', 'HNL', 0, 3, 1, 1, 900, 4963))
  t(day, dest, scheduled, cancelled, departed, arrived, arrival_delay_minutes, distance_miles);
create table gold.worst_delays as from (values ('a', 1301), ('b', 12)) t(flight_id, departure_delay);
create table gold.flight_status as from (values
  ('a', 'HA', 51, 'JFK', 'HNL', timestamptz '2013-01-09 14:00Z'),
  ('b', 'EV', 1, 'JFK', 'BNA', timestamptz '2013-01-09'),
  ('c', 'EV', 2, 'JFK', 'BNA', timestamptz '2013-01-09'))
  t(flight_id, carrier, flight, origin, dest, scheduled_departure);
create table gold.weather_days as from (values
  (date '2013-02-08', 'JFK', 1.2), (date '2013-02-09', 'JFK', 0.0), (date '2013-02-09', 'LGA', 3.0))
  t(day, station, rain);
set TimeZone = 'UTC';
"""


@pytest.fixture
def gold() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:")
    connection.execute(GOLD)
    return connection


def test_worst_airline_excludes_small_ones(gold: duckdb.DuckDBPyConnection) -> None:
    assert gold.sql(WORST_AIRLINE.sql).fetchall() == [("EV", 12000, 15.0, 41.7), ("B6", 20000, 2.0, 0.5)]


def test_worst_day_is_ordered_by_cancellations(gold: duckdb.DuckDBPyConnection) -> None:
    rows = gold.sql(WORST_DAY.sql).fetchall()
    assert [row[1:] for row in rows] == [(1000, 9000, 11.1), (3, 0, None), (0, 24010, 0.0)]


def test_worst_departures_are_ordered_by_delay(gold: duckdb.DuckDBPyConnection) -> None:
    rows = gold.sql(WORST_DEPARTURES.sql).fetchall()
    assert [(row[0], row[4], row[5]) for row in rows] == [("HA 51", 1301, 21.7), ("EV 1", 12, 0.2)]


def test_latest_destination_excludes_small_ones(gold: duckdb.DuckDBPyConnection) -> None:
    assert gold.sql(LATEST_DESTINATION.sql).fetchall() == [("DEN", 2000, 4.0, 2)]


def test_rain_joins_by_day_and_airport(gold: duckdb.DuckDBPyConnection) -> None:
    assert gold.sql(RAIN.sql).fetchall() == [("very wet", 1, 20.0, 11.1), ("dry", 1, 2.9, 0.0)]


def test_questions_are_valid_queries_and_fit_80_columns() -> None:
    known = [
        f"gold.{name}" for name in ("carrier_hours", "route_days", "worst_delays", "flight_status", "weather_days")
    ]
    for question in (*QUESTIONS, RAIN):
        validate_reading(question.sql)
        assert tables_mentioned(question.sql, known)
        assert max(len(text) for text in [question.words, *question.sql.splitlines()]) <= 80
