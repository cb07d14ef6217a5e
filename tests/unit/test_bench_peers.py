"""Peers of the benchmarks: what they are given, their order, the contract that they keep."""

from __future__ import annotations

from copy import deepcopy
from datetime import timedelta
from pathlib import Path

import polars as pl
import pyarrow.dataset as ds
import pytest
import typer
from benchmarks import command, peer_run
from benchmarks.event_supply import ad_block
from benchmarks.gate import table_problems
from benchmarks.peer_run import PEERS, in_turn
from benchmarks.peers import peer_job, polars_delta_rs
from benchmarks.peers.peer_job import PeerJob, TopicSpan, read_job
from benchmarks.sent_records import SentRecords
from benchmarks.state import copied_dataset
from confluent_kafka import TopicPartition
from workloads.ad_events import ads as produced_ads

from include.declare.dataset import declared_dataset
from include.ground.settings import Settings

# --- peers -------------------------------------------------------------------------------------------------------


def test_each_run_begins_with_another_peer() -> None:
    assert [in_turn(("a", "b", "c"), run) for run in (1, 2, 4)] == [["a", "b", "c"], ["b", "c", "a"], ["a", "b", "c"]]
    assert in_turn((), 1) == []


def test_job_of_a_peer_is_read_as_it_was_given() -> None:
    span = TopicSpan("ad_events", {0: 1, 1: 2}, {0: 3, 1: 4})
    job = PeerJob("127.0.0.1:1", span, span, "/a folder", "/ads.csv", 2, "1g", "/jars")
    assert read_job(job.to_json()) == job


def test_contract_of_the_peers_is_that_of_the_dataset(settings: Settings, tmp_path: Path) -> None:
    folder = copied_dataset("ad_events", tmp_path)
    found = declared_dataset(settings.model_copy(update={"datasets": folder}), "ad_events")
    fields = {column.name: column for column in found.contract.columns}
    assert tuple(fields) == peer_job.FIELDS
    assert {name: fields[name].pattern for name in fields if fields[name].pattern} == peer_job.PATTERNS
    assert {name: fields[name].values for name in fields if fields[name].values} == peer_job.VALUES
    assert fields["ip_address"].max_length == peer_job.LONGEST_ADDRESS
    assert all(field.required for field in fields.values())
    assert found.pipeline.identity == ("event_time",)
    assert found.pipeline.horizon == timedelta(seconds=peer_job.HORIZON_SECONDS)


def test_sent_records_since_a_state_are_those_that_came_after_it() -> None:
    both, second = SentRecords("ad_events"), SentRecords("ad_events")
    both.add(ad_block(0))
    before = deepcopy(both)
    for sent in (both, second):
        sent.add(ad_block(1))
    assert both.since(before) == second


def test_command_names_peers_by_a_part_of_their_name() -> None:
    assert command.known_peers(None) == tuple(PEERS)
    assert command.known_peers(["polars"]) == ("polars, delta-rs",)
    with pytest.raises(typer.BadParameter, match="storm"):
        command.known_peers(["storm"])


def test_events_of_polars_peer_keep_the_contract_and_come_once() -> None:
    block = ad_block(0).head(3_000)
    good = block.filter(pl.col("reason").is_null())
    ads = pl.DataFrame(produced_ads(), schema=["ad_id", "campaign_id"], orient="row")
    found = polars_delta_rs.parsed([FakeMessage(value) for value in block["value"]], ads)  # type: ignore[misc]
    assert sorted(found["event_time"]) == sorted(good["event_id"])
    assert found["campaign_id"].null_count() == 0


class FakeMessage:
    def __init__(self, value: bytes) -> None:
        self._value = value

    def value(self) -> bytes:
        return self._value


def test_tables_of_polars_peer_are_right_after_each_batch_and_when_one_is_repeated(tmp_path: Path) -> None:
    ads = pl.DataFrame(produced_ads(), schema=["ad_id", "campaign_id"], orient="row")
    sent, block = SentRecords("ad_events"), ad_block(0).head(9_000)
    for part in (block.slice(0, 4_000), block.slice(4_000), block.slice(4_000)):
        events = polars_delta_rs.parsed([FakeMessage(value) for value in part["value"]], ads)  # type: ignore[misc]
        polars_delta_rs.write_gold(tmp_path, polars_delta_rs.write_silver(tmp_path / "silver", events, []))
    sent.add(block)
    identities = pl.read_delta(str(tmp_path / "silver"))["event_time"]
    gold = ds.dataset(pl.read_delta(str(tmp_path / "gold")).to_arrow())
    assert table_problems(sent, [identities], gold) == []


@pytest.mark.parametrize("zone", ["UTC", None])
def test_tables_with_times_without_a_zone_are_compared_in_utc(tmp_path: Path, zone: str | None) -> None:
    frame, sent = ad_block(0), SentRecords("ad_events")
    sent.add(frame)
    silver = frame.filter(pl.col("reason").is_null()).select(event_time="event_id")
    gold = sent.view_rows().with_columns(pl.col("since").dt.replace_time_zone(zone))
    for name, rows in (("silver", silver), ("gold", gold)):
        (tmp_path / name).mkdir()
        rows.write_parquet(tmp_path / name / "part.parquet")
    assert peer_run._problems(tmp_path, sent) == []
    gold.with_columns(pl.col("since").dt.offset_by("10s")).write_parquet(tmp_path / "gold" / "part.parquet")
    assert peer_run._problems(tmp_path, sent)


def test_polars_peer_continues_where_its_last_commit_ended(tmp_path: Path) -> None:
    span = TopicSpan("ad_events", {0: 5, 1: 7}, {0: 100, 1: 100})
    assert polars_delta_rs.next_offsets(span, tmp_path) == {0: 5, 1: 7}
    events = pl.DataFrame({"event_time": ["1"]})
    done = polars_delta_rs.transaction(TopicPartition("ad_events", 1, 42))
    polars_delta_rs.write_silver(tmp_path / "silver", events, [done])
    assert polars_delta_rs.next_offsets(span, tmp_path) == {0: 5, 1: 42}
