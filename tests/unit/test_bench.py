"""The benchmarks: temporary state, what is sent, what is observed, latency, the gate, the search for a rate."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.dataset as ds
import pytest
from benchmarks import event_supply, state, sustained_mode
from benchmarks import follower as bench_follower
from benchmarks import session as bench_session
from benchmarks.checkout_events import EVENTS
from benchmarks.cpu_usage import per_million, used_between
from benchmarks.drain_mode import require_count
from benchmarks.event_supply import EventSupply, ad_block, checkout_day
from benchmarks.follower import BenchFailed, ObservedPublication, PublicationFollower, seconds_per_million
from benchmarks.gate import table_problems
from benchmarks.growth_mode import SmallRun, growth_figures
from benchmarks.latency_mode import latency_trend, quantiles, waiting_seconds
from benchmarks.sent_records import SentRecords, block_shift, expected_views, identity_hash
from benchmarks.session import BenchSession, warm_session
from benchmarks.state import copied_dataset, temporary_state
from benchmarks.sustained_mode import Trial, highest_held, lag_trend
from workloads.ad_events import AD_EVENTS

from include.declare.contract import Column
from include.declare.dataset import declared_dataset
from include.ground.paths import publication_path, status_path
from include.ground.settings import Settings, load_settings
from include.read.publication import Publication, publish
from include.state.process_states import ProcessState, ProcessStatus
from include.state.streams import LastRun

AT = datetime(2026, 11, 21, tzinfo=UTC)


# --- temporary state ---------------------------------------------------------------------------------------------


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "mine"))
    monkeypatch.setenv("HEADRACE_LEDGER_URL", "postgresql://me@there/ledger")
    monkeypatch.setenv("HEADRACE_KAFKA_PORT", "9092")
    monkeypatch.setenv("HEADRACE_KAFKA_BOOTSTRAP", "kafka.example:9092")
    monkeypatch.setenv("HEADRACE_SPARK_MASTER", "spark://master.example:7077")
    monkeypatch.setenv("HEADRACE_DRIVER_CORES", "4")
    load_settings.cache_clear()
    yield tmp_path / "mine"
    load_settings.cache_clear()


def test_benchmark_state_is_temporary(environment: Path) -> None:
    with temporary_state("flights", keep=False) as settings:
        assert [folder.name for folder in settings.datasets.iterdir()] == ["flights"]
        assert settings.state != environment
        assert (settings.ledger_url, settings.kafka_port, settings.driver_cores) == ("", 0, 4)
        assert os.environ["HEADRACE_STATE"] == str(settings.state)
        assert (settings.kafka_bootstrap, settings.spark_master) == ("", "")
        assert "HEADRACE_LEDGER_URL" not in os.environ
    assert not settings.datasets.parent.exists()
    assert load_settings().state == environment
    assert load_settings().kafka_port == 9092


def test_temporary_state_is_removed_after_a_failure_unless_keep(environment: Path) -> None:
    with pytest.raises(KeyboardInterrupt), temporary_state("flights", keep=False) as settings:
        raise KeyboardInterrupt
    assert not settings.datasets.parent.exists()
    with temporary_state("flights", keep=True) as keeping:
        pass
    assert keeping.datasets.is_dir()
    shutil.rmtree(keeping.datasets.parent)


def test_started_processes_are_stopped(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def up(*_: object) -> None:
        calls.append("up")
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_session, "up", up)
    monkeypatch.setattr(state, "down", lambda *_: calls.append("down"))
    with pytest.raises(KeyboardInterrupt), warm_session("flights", 1, False, print):
        pass
    assert calls == ["up", "down"]


def test_ad_events_have_the_gold_table_of_the_benchmark_only(settings: Settings, tmp_path: Path) -> None:
    folder = copied_dataset("ad_events", tmp_path)
    found = declared_dataset(settings.model_copy(update={"datasets": folder}), "ad_events")
    assert [table.name for table in found.pipeline.gold] == ["campaign_views"]


def leaves(value: object) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 1 if inside is None else sum(map(leaves, inside))


def test_checkouts_are_nested_records_of_1_kb_with_40_values() -> None:
    records = checkout_day(0)["value"]
    sizes, values = zip(*((len(record), leaves(json.loads(record))) for record in records), strict=True)
    assert sum(sizes) / len(sizes) == pytest.approx(1024, rel=0.02)
    assert sum(values) / len(values) == pytest.approx(40, rel=0.03)


def test_the_folder_of_checkouts_keeps_all_that_is_inside(settings: Settings, tmp_path: Path) -> None:
    folder = copied_dataset("checkouts", tmp_path)
    found = declared_dataset(settings.model_copy(update={"datasets": folder}), "checkouts")
    assert [table.name for table in found.pipeline.gold] == ["checkouts_days"]
    assert_named(json.loads(checkout_day(0)["value"][0]), found.contract.columns)


def assert_named(value: object, columns: Sequence[Column]) -> None:
    if isinstance(value, list):
        assert_named(value[0], columns[0].fields)
    elif isinstance(value, dict):
        by_name = {column.name: column.fields for column in columns}
        for name, each in value.items():
            assert_named(each, by_name[name])


# --- sent events -------------------------------------------------------------------------------------------------


def numbered(number: int) -> pl.DataFrame:
    return pl.DataFrame({"n": range(100 * number, 100 * number + 100)})


@pytest.fixture
def supply(monkeypatch: pytest.MonkeyPatch) -> EventSupply:
    monkeypatch.setattr(event_supply, "flight_year", numbered)
    return EventSupply("flights")


def test_event_supply_continues_across_blocks_without_a_gap(supply: EventSupply) -> None:
    first = [frame["n"].to_list() for frame in supply.frames(150)]
    supply.prepare(300)
    second = [frame["n"].to_list() for frame in supply.frames(120)]
    assert [len(part) for part in (*first, *second)] == [100, 50, 50, 70]
    assert sum((*first, *second), []) == list(range(270))


def test_whole_blocks_end_where_a_block_ends(supply: EventSupply) -> None:
    list(supply.frames(30))
    assert [supply.whole_blocks(at_least) for at_least in (1, 70, 71, 300)] == [70, 70, 170, 370]


def test_blocks_of_ad_events_are_the_producers_events_moved_in_time() -> None:
    shift = 2 * event_supply.BLOCK_SPAN
    accepted = ad_block(2).filter(pl.col("reason").is_null()).sort("event_id")
    produced = AD_EVENTS.frame(shift).sort("event_id")
    assert accepted["value"].equals(produced["value"])
    assert accepted["event_id"].equals(produced["event_id"])


def test_days_of_checkouts_have_ids_and_times_of_their_own() -> None:
    first, third = (checkout_day(number).filter(pl.col("reason").is_null()) for number in (0, 2))
    assert first["event_id"].n_unique() == first.height == EVENTS
    assert not {*first["event_id"]} & {*third["event_id"]}
    records = [json.loads(record) for record in third["value"]]
    assert [record["event_id"] for record in records] == third["event_id"].to_list()
    assert {record["placed_at"][:10] for record in records} == {"2021-03-03"}


def test_oracle_of_a_whole_block_is_that_of_its_records() -> None:
    block, sent = ad_block(3), SentRecords("ad_events")
    sent.add(block)
    assert sent.blocks == [1_500_000]
    rows = {(campaign, since): views for campaign, since, views in sent.view_rows().iter_rows()}
    assert rows == expected_views(block.filter(pl.col("reason").is_null())["value"])
    assert block_shift(block.head(1000)) is None


def test_hash_of_identities_depends_on_each_but_not_on_their_order() -> None:
    some = pl.Series(["a", "b", "c"])
    assert identity_hash(some) == identity_hash(some.reverse())
    assert len({identity_hash(pl.Series(each)) for each in (["a", "b", "c"], ["a", "b"], ["a", "b", "d"])}) == 3


def test_sent_records_add_up_over_frames() -> None:
    whole, parts = SentRecords("ad_events"), SentRecords("ad_events")
    block = ad_block(0)
    whole.add(block)
    for part in (block.head(20_000), block.slice(20_000)):
        parts.add(part)
    keys = ["since", "campaign_id"]
    assert whole.view_rows().sort(keys).equals(parts.view_rows().sort(keys))
    assert (whole.accepted, whole.hash) == (parts.accepted, parts.hash)
    assert (whole.records, whole.accepted) == (50_500, 50_000)


def test_views_of_spans_together_are_all_views() -> None:
    sent, keys = SentRecords("ad_events"), ["since", "campaign_id"]
    for number in (0, 1, 400):
        sent.add(ad_block(number))
    sent.add(ad_block(2).head(9_000))
    spans = sent.view_spans()
    assert len(spans) == 3
    found = pl.concat([sent.view_rows(*span) for span in spans])
    assert found.sort(keys).equals(sent.view_rows().sort(keys))


def test_wrong_event_count_fails_the_benchmark(settings: Settings) -> None:
    session = BenchSession(settings, "flights", print, EventSupply("flights"), SentRecords("flights"))
    require_count(session, 10, {0: 5, 1: 5}, {0: 11, 1: 9})
    with pytest.raises(BenchFailed):
        require_count(session, 10, {0: 5, 1: 5}, {0: 5, 1: 5})


# --- gate --------------------------------------------------------------------------------------------------------

SINCE = datetime(2026, 3, 1, tzinfo=UTC)
GATE = SentRecords("ad_events", 3, 2, identity_hash(pl.Series(["1", "2"])), [], Counter({("c", SINCE): 2}))
VIEWS = pl.DataFrame({"campaign_id": ["c"], "since": [SINCE], "views": [2]})


def in_arrow(rows: pl.DataFrame) -> ds.Dataset:
    return ds.dataset(rows.to_arrow())


def test_right_tables_pass_the_gate() -> None:
    assert table_problems(GATE, [pl.Series(["2"]), pl.Series(["1"])], in_arrow(VIEWS)) == []


@pytest.mark.parametrize("identities", [["1"], ["1", "2", "2"], ["1", "3"]])
def test_missing_surplus_and_other_rows_of_silver_fail_the_gate(identities: list[str]) -> None:
    assert table_problems(GATE, [pl.Series(identities)], in_arrow(VIEWS))


@pytest.mark.parametrize(
    "views",
    [
        VIEWS.with_columns(views=pl.lit(3)),
        VIEWS.clear(),
        pl.concat([VIEWS, VIEWS]),
        pl.concat([VIEWS, VIEWS.with_columns(since=SINCE + timedelta(seconds=10))]),
        pl.concat([VIEWS, VIEWS.with_columns(since=SINCE + timedelta(days=40))]),
        pl.concat([VIEWS, VIEWS.with_columns(since=pl.lit(None, pl.Datetime("us", "UTC")))]),
    ],
)
def test_wrong_missing_doubled_and_surplus_rows_of_gold_fail_the_gate(views: pl.DataFrame) -> None:
    assert len(table_problems(GATE, [pl.Series(["1", "2"])], in_arrow(views))) >= 1


# --- observed publications ---------------------------------------------------------------------------------------


def published(settings: Settings, batch: int, ends: dict[int, int]) -> None:
    publish(settings, Publication("flights", "r", batch, AT, ends, {}))


def test_each_publication_is_observed_once(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PublicationFollower, "_read_status", lambda self: None)
    follower = PublicationFollower(settings, "flights")
    follower.poll()
    assert not follower.reached({0: 1})
    published(settings, 1, {0: 5, 1: 6})
    follower.poll()
    follower.poll()
    assert follower.reached({0: 5, 1: 6})
    assert not follower.reached({0: 5, 1: 7})
    published(settings, 2, {0: 5, 1: 7})
    follower.poll()
    assert [publication.ends for publication in follower.publications] == [{0: 5, 1: 6}, {0: 5, 1: 7}]
    assert follower.publications[0].at <= follower.publications[1].at


def write_run_status(settings: Settings, rows: int, seconds: float) -> None:
    path = status_path(settings, "stream:flights")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"last_batch": {"rows": rows, "seconds": seconds, "steps": {"silver": seconds}}}))


def test_each_run_is_recorded_once_and_runs_can_be_cleared(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_follower, "STATUS_SECONDS", 0.0)
    monkeypatch.setattr(
        bench_follower, "observe_processes", lambda *_: [ProcessStatus("broker", 1, ProcessState.RUNNING)]
    )
    follower = PublicationFollower(settings, "flights")
    for rows in (100, 100, 200, 200, 300):
        write_run_status(settings, rows, 1.0)
        follower.poll()
        if rows == 100:
            follower.runs.clear()
    assert [run.rows for run in follower.runs] == [200, 300]


def test_lost_or_stalled_stream_fails_the_benchmark(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = [ProcessStatus("stream:flights", None, ProcessState.CRASHED, "pid 7 is gone")]
    monkeypatch.setattr(bench_follower, "observe_processes", lambda *_: lost)
    with pytest.raises(BenchFailed, match="pid 7 is gone"):
        PublicationFollower(settings, "flights").follow(lambda: False)
    lost.clear()
    monkeypatch.setattr(bench_follower, "STATUS_SECONDS", 0.0)
    monkeypatch.setattr(bench_follower, "STALLED_SECONDS", 0.05)
    with pytest.raises(BenchFailed, match="nothing was published"):
        PublicationFollower(settings, "flights").follow(lambda: False)
    assert not publication_path(settings, "flights").exists()


def test_steps_are_weighted_by_rows() -> None:
    runs = [LastRun(100_000, 3.0, {"silver": 2.0, "gold": 1.0}), LastRun(300_000, 3.0, {"silver": 2.0})]
    assert seconds_per_million(runs) == pytest.approx({"silver": 10.0, "gold": 2.5})
    assert seconds_per_million([]) == {}


def test_cpu_is_the_difference_of_two_measurements() -> None:
    before, after = {"broker": 3.0, "gone": 1.0}, {"broker": 4.5, "JVM": 2.0, "Python": 0.5, "benchmark": 9.0}
    used = used_between(before, after)
    assert used == {"broker": 1.5, "JVM": 2.0, "Python": 0.5, "benchmark": 9.0}
    assert per_million(used, 500_000)["CPU s/M, all"] == pytest.approx(5.0)


# --- latency -----------------------------------------------------------------------------------------------------


def test_latency_ends_at_the_first_publication_with_the_record() -> None:
    records = pl.DataFrame(
        [(0, 10, 100.0), (0, 11, 100.0), (0, 12, 101.0), (1, 5, 100.5)],
        schema=["partition", "offset", "timestamp"],
        orient="row",
    )
    publications = [
        ObservedPublication(99.0, {0: 10, 1: 5}),
        ObservedPublication(102.0, {0: 12, 1: 5}),
        ObservedPublication(104.0, {0: 13, 1: 6}),
    ]
    assert sorted(waiting_seconds(records, publications)["waited"]) == pytest.approx([2.0, 2.0, 3.0, 3.5])


def test_latency_trend_is_seconds_a_second() -> None:
    at = [1.7e9 + n for n in range(100)]
    grows = pl.DataFrame({"timestamp": at, "waited": [1 + 0.5 * n for n in range(100)]})
    assert latency_trend(grows) == pytest.approx(0.5)
    assert latency_trend(grows.with_columns(waited=1.0)) == pytest.approx(0.0)


def test_quantiles_are_not_interpolated() -> None:
    waited = np.array([float(n) for n in range(1, 101)])
    assert quantiles(waited) == {"p50": 50.0, "p95": 95.0, "p99": 99.0, "max": 100.0}
    assert quantiles(np.array([1.0, 9.0]))["p50"] == 1.0


# --- sustained rate ----------------------------------------------------------------------------------------------


def test_lag_trend_is_the_slope_after_the_first_quarter() -> None:
    settling = [(float(at), 100_000.0) for at in range(25)]
    assert lag_trend([*settling, *((float(at), 50.0 * at) for at in range(25, 101))]) == pytest.approx(50.0)
    assert lag_trend([(float(at), 2_000.0 if at % 2 else 8_000.0) for at in range(101)]) == pytest.approx(0, abs=10)
    assert lag_trend([(0.0, 5.0)]) == 0.0


def test_a_rate_is_held_when_lag_is_flat_and_the_producer_on_time() -> None:
    assert Trial(10_000, 100, 0.1).is_held
    assert not Trial(10_000, 101, 0.1).is_held
    assert not Trial(10_000, 0, 1.1).is_held
    assert "producer" in Trial(10_000, 0, 1.1).sentence()


@pytest.mark.parametrize("limit", [20_000, 47_000, 100_000, 123_456, 199_999, 300_000])
def test_search_finds_the_highest_held_rate(limit: float) -> None:
    tried: list[float] = []

    def trial(rate: float) -> Trial:
        tried.append(rate)
        return Trial(rate, 0 if rate <= limit else rate, 0)

    found = highest_held(trial, 20_000, 200_000)
    assert found is not None
    assert found.rate <= limit
    assert found.rate >= min(limit, 200_000) / (1 + 2 * sustained_mode.PRECISION)
    assert len(tried) <= 10


def test_no_rate_is_held_when_the_lowest_is_not() -> None:
    assert highest_held(lambda rate: Trial(rate, rate, 0), 20_000, 200_000) is None
    assert highest_held(lambda rate: Trial(rate, rate, 0), 92_600, 92_600) is None


def test_growth_compares_the_last_quarter_of_the_runs_with_the_first() -> None:
    runs = [SmallRun(1.0, 2.0), SmallRun(9.0, 9.0), SmallRun(9.0, 9.0), SmallRun(1.5, 2.0)]
    figures = growth_figures(runs)
    assert (figures["s a run, first"], figures["s a run, last"], figures["s a run, times"]) == (1.0, 1.5, 1.5)
    assert figures["CPU s a run, times"] == 1.0
