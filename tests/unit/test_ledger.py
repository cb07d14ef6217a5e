"""The ledger is an index: whatever the order of projections, it equals the Delta logs."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from error_codes import raises
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from ledgered_stream import RELEASE, Stream, commit

from include.ground.delta_log import Commit, LogDamaged, commits, read_commit
from include.ground.errors import Terminal, Transient
from include.ground.paths import bronze_path, gold_path, rejected_path, silver_path, warehouse
from include.ground.settings import Settings
from include.observe.ledger_reader import OffsetRange, RuleWarnings, open_reader
from include.observe.ledger_rows import insert_commits, rows_of_commit
from include.observe.ledger_schema import (
    FACTS,
    LedgerMismatch,
)
from include.observe.ledger_writer import (
    Difference,
    LedgerWriter,
    Projected,
    insert_publications,
    open_writer,
    project_dataset,
    rebuild,
    table_paths,
)
from include.read.publication import find_publication

FLIGHTS = "flights"


@pytest.fixture
def stream(settings: Settings) -> Stream:
    return Stream(settings)


@pytest.fixture
def writer(settings: Settings) -> Iterator[LedgerWriter]:
    opened = open_writer(settings)
    yield opened
    opened.close()


def ledger_file(settings: Settings) -> Path:
    return settings.state / "ledger.sqlite"


def everything(settings: Settings) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables of facts, by plain SQL."""
    with closing(sqlite3.connect(ledger_file(settings))) as raw:
        return {table.name: sorted(raw.execute(f"select * from {table.name}"), key=str) for table in FACTS}


def test_run_is_projected_into_rows(stream: Stream, writer: LedgerWriter, settings: Settings) -> None:
    stream.run(0, 1)
    assert project_dataset(writer, settings, FLIGHTS) == Projected(commits=11, published=1, cleaned={})
    first, second = open_reader(settings).last_batches(FLIGHTS)
    assert first.ranges == (OffsetRange(0, 0, 11, 10), OffsetRange(1, 0, 11, 10))
    assert second.ranges == (OffsetRange(0, 11, 22, 10), OffsetRange(1, 11, 22, 10))
    assert (second.rows, second.version, second.first_timestamp_ms) == (20, 2, 1_700_000_000_001)
    assert second.committed_at_ms == read_commit(bronze_path(settings, FLIGHTS), 2).timestamp_ms
    totals = open_reader(settings).totals()[FLIGHTS]
    assert (totals.bronze, totals.last_batch) == (40, 1)
    release = totals.releases[RELEASE]
    assert (release.rows_in, release.accepted, release.invalid, release.duplicate) == (40, 34, 4, 2)
    assert release.reasons == {"type": 4, "null": 2, "duplicate": 2}
    assert release.warned == {"late": 2, "odd": 0}
    assert release.gold == {"carrier_hours": 101, "route_days": 101}
    assert release.last_batch == 1


def test_rule_counts_are_read_run_by_run(stream: Stream, writer: LedgerWriter, settings: Settings) -> None:
    stream.run(0, 0)
    stream.run(1, 1)
    project_dataset(writer, settings, FLIGHTS)
    reader = open_reader(settings)
    first, second = reader.run_counts(FLIGHTS, RELEASE)
    assert (first.first_batch, first.last_batch, first.rows_in) == (0, 0, 20)
    assert second.reasons == {"type": 2, "null": 1, "duplicate": 1}
    assert second.warnings == {"late": RuleWarnings(17, 1, (1, 1)), "odd": RuleWarnings(9, 0, None)}
    assert reader.run_counts("weather", RELEASE) == []
    assert [run.last_batch for run in reader.run_counts(FLIGHTS, RELEASE, since=second.validated_at)][-1] == 1
    assert reader.run_counts(FLIGHTS, RELEASE, until=first.validated_at) == []


def test_counts_are_those_of_each_run_when_a_clock_was_put_back(
    stream: Stream, writer: LedgerWriter, settings: Settings
) -> None:
    for number in range(3):
        stream.run(number, number)
    project_dataset(writer, settings, FLIGHTS)
    with closing(sqlite3.connect(ledger_file(settings))) as raw, raw:
        raw.execute("update runs set rejected_committed_at_ms = (last_batch + 2) % 3")
    found = open_reader(settings).run_counts(FLIGHTS, RELEASE)
    assert [run.last_batch for run in found] == [1, 2, 0]
    assert [run.reasons for run in found] == [{"type": 2, "null": 1, "duplicate": 1}] * 3


def test_publication_has_the_table_versions_of_its_batch(
    stream: Stream, writer: LedgerWriter, settings: Settings
) -> None:
    stream.run(0, 0)
    project_dataset(writer, settings, FLIGHTS)
    ((dataset, release, batch, published_at, tables),) = everything(settings)["publications"]
    assert (dataset, release, batch) == (FLIGHTS, RELEASE, 0)
    assert json.loads(tables) == {name: table.version for name, table in stream.tables.items()}
    last = gold_path(settings, FLIGHTS, RELEASE, "route_days")
    assert published_at == read_commit(last, 1).timestamp_ms


def test_rebuild_is_identical_to_the_live_ledger(stream: Stream, writer: LedgerWriter, settings: Settings) -> None:
    for first, last in ((0, 0), (1, 3), (4, 4)):
        stream.run(first, last)
        project_dataset(writer, settings, FLIGHTS)
    stream.bronze(5)
    stream.silver(5, 5)
    stream.refresh("route_days", 4, total=250)
    project_dataset(writer, settings, FLIGHTS)
    assert open_reader(settings).totals()[FLIGHTS].releases[RELEASE].gold["route_days"] == 250
    live = everything(settings)
    assert len(live["batches"]) == 6
    assert len(live["publications"]) == 3
    assert rebuild(settings).identical
    assert everything(settings) == live


def test_lost_ledger_is_rebuilt_with_the_same_rows(stream: Stream, writer: LedgerWriter, settings: Settings) -> None:
    stream.run(0, 2)
    project_dataset(writer, settings, FLIGHTS)
    live = everything(settings)
    for path in settings.state.glob("ledger.sqlite*"):
        path.unlink()
    rebuilt = rebuild(settings)
    assert not rebuilt.compared
    assert everything(settings) == live


def test_rebuild_reports_the_differences(stream: Stream, writer: LedgerWriter, settings: Settings) -> None:
    stream.run(0, 2)
    project_dataset(writer, settings, FLIGHTS)
    with sqlite3.connect(ledger_file(settings)) as raw:
        raw.execute("delete from ranges where batch = 1 and partition = 0")
        raw.execute("update runs set accepted = accepted + 1")
        raw.execute("insert into reasons values ('flights', 'gone', 7, 'type', 1)")
    rebuilt = rebuild(settings)
    assert not rebuilt.identical
    assert rebuilt.differences == {
        "ranges": Difference(missing=1, surplus=0, changed=0),
        "runs": Difference(missing=0, surplus=0, changed=1),
        "reasons": Difference(missing=0, surplus=1, changed=0),
    }
    assert rebuild(settings).identical


STEPS = st.lists(st.sampled_from(["catch up", "new process", "rebuild", "nothing"]), min_size=12, max_size=12)


@given(steps=STEPS)
@hypothesis_settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_order_of_projections_does_not_change_the_ledger(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    """Between any two commits the ledger catches up, its driver dies, it is rebuilt, or nothing happens."""
    settings = Settings(state=tmp_path_factory.mktemp("state"))
    stream, writer, at = Stream(settings), open_writer(settings), iter(steps)
    for act in (
        lambda: stream.bronze(0),
        lambda: stream.bronze(1),
        lambda: stream.silver(0, 1),
        lambda: stream.rejected(0, 1),
        lambda: stream.merge("carrier_hours", 0, 1),
        lambda: stream.merge("route_days", 0, 1),
        lambda: stream.publish(1),
        lambda: stream.bronze(2),
        lambda: stream.refine(2, 2),
        lambda: stream.publish(2),
        lambda: stream.bronze(3),
        lambda: stream.silver(3, 3),
    ):
        act()
        step = next(at)
        writer = open_writer(settings) if step == "new process" else writer
        if step == "rebuild":
            rebuild(settings)
        elif step != "nothing":
            project_dataset(writer, settings, FLIGHTS)
    project_dataset(writer, settings, FLIGHTS)
    assert rebuild(settings).identical
    assert len(everything(settings)["publications"]) == 2


def test_unfinished_run_is_not_published(stream: Stream, writer: LedgerWriter, settings: Settings) -> None:
    stream.run(0, 0)
    stream.bronze(1)
    stream.silver(1, 1)
    stream.rejected(1, 1)
    stream.merge("carrier_hours", 1, 1)
    stream.publish(1)
    project_dataset(writer, settings, FLIGHTS)
    assert [row[2] for row in everything(settings)["publications"]] == [0]
    stream.merge("route_days", 1, 1)
    project_dataset(writer, settings, FLIGHTS)
    assert [row[2] for row in everything(settings)["publications"]] == [0, 1]


def test_complete_run_is_not_published_before_the_publication_moves(
    stream: Stream, writer: LedgerWriter, settings: Settings
) -> None:
    stream.run(0, 0)
    stream.bronze(1)
    stream.refine(1, 1)
    project_dataset(writer, settings, FLIGHTS)
    assert [row[2] for row in everything(settings)["publications"]] == [0]


def enter(writer: LedgerWriter, path: str, found: list[Commit]) -> int:
    with writer.transaction() as connection:
        return insert_commits(connection, path, found)


def test_commits_and_publications_are_entered_once(stream: Stream, writer: LedgerWriter, settings: Settings) -> None:
    publication = stream.run(0, 1)
    for path in table_paths(settings, FLIGHTS):
        assert enter(writer, path, list(commits(warehouse(settings) / path))) > 0
        assert enter(writer, path, list(commits(warehouse(settings) / path))) == 0
    with writer.transaction() as connection:
        assert insert_publications(connection, publication) == 1
        assert insert_publications(connection, publication) == 0
    assert rebuild(settings).identical


def test_commit_is_refused_before_its_predecessors(stream: Stream, writer: LedgerWriter, settings: Settings) -> None:
    stream.run(0, 1)
    table = bronze_path(settings, FLIGHTS)
    enter(writer, "flights/bronze", [read_commit(table, 0)])
    with raises(Transient, "ledger-behind") as caught:
        enter(writer, "flights/bronze", [read_commit(table, 2)])
    assert caught.value.facts["at"] == 2
    assert everything(settings)["batches"] == []


def test_commits_without_a_batch_add_no_rows_and_no_gap(
    stream: Stream, writer: LedgerWriter, settings: Settings
) -> None:
    stream.run(0, 0)
    commit(silver_path(settings, FLIGHTS, RELEASE), "somebody", 1, None)
    commit(silver_path(settings, FLIGHTS, RELEASE), "plan/7/silver/x/y", 1, {"app_id": "plan/7/silver/x/y"})
    project_dataset(writer, settings, FLIGHTS)
    stream.run(1, 1)
    project_dataset(writer, settings, FLIGHTS)
    assert [row[2] for row in everything(settings)["runs"]] == [0, 1]
    assert rebuild(settings).identical


def test_ledger_catches_up_after_an_outage(stream: Stream, writer: LedgerWriter, settings: Settings) -> None:
    stream.run(0, 0)
    project_dataset(writer, settings, FLIGHTS)
    stream.run(1, 1)
    with sqlite3.connect(ledger_file(settings), isolation_level=None) as other:
        other.execute("begin immediate")
        with raises(Transient, "ledger-unavailable", match="locked"):
            project_dataset(writer, settings, FLIGHTS)
        assert len(open_reader(settings).last_batches()) == 1
        other.execute("rollback")
    assert project_dataset(writer, settings, FLIGHTS).commits == 5
    assert rebuild(settings).identical


def test_ledger_deleted_under_a_driver_is_recreated(stream: Stream, writer: LedgerWriter, settings: Settings) -> None:
    stream.run(0, 0)
    project_dataset(writer, settings, FLIGHTS)
    for path in settings.state.glob("ledger.sqlite*"):
        path.unlink()
    stream.run(1, 1)
    assert project_dataset(writer, settings, FLIGHTS).published == 2
    assert rebuild(settings).identical


def test_damaged_file_is_set_aside_and_rebuilt(stream: Stream, writer: LedgerWriter, settings: Settings) -> None:
    stream.run(0, 0)
    project_dataset(writer, settings, FLIGHTS)
    live = everything(settings)
    writer.close()
    assert not list(settings.state.glob("*-wal"))
    ledger_file(settings).write_bytes(b"no database " * 1000)
    rebuilt = rebuild(settings)
    assert rebuilt.set_aside is not None
    assert rebuilt.set_aside.read_bytes().startswith(b"no database")
    assert everything(settings) == live
    assert project_dataset(writer, settings, FLIGHTS).commits == 0


def test_outdated_schema_is_refused_until_rebuilt(stream: Stream, writer: LedgerWriter, settings: Settings) -> None:
    stream.run(0, 0)
    project_dataset(writer, settings, FLIGHTS)
    with sqlite3.connect(ledger_file(settings)) as raw:
        raw.execute("update headrace_ledger set value = '0'")
        raw.execute("create table something_old (a)")
        raw.execute("drop table reasons")
    for question in (lambda: project_dataset(writer, settings, FLIGHTS), open_reader(settings).totals):
        with pytest.raises(Terminal, match="has schema") as caught:
            question()
        assert (caught.value.facts["found"], caught.value.remedy) == ("0", "headrace ledger rebuild")
    assert not rebuild(settings).compared
    assert open_reader(settings).totals()[FLIGHTS].releases[RELEASE].reasons["type"] == 2


def test_recreated_table_is_refused(stream: Stream, writer: LedgerWriter, settings: Settings) -> None:
    stream.run(0, 1)
    project_dataset(writer, settings, FLIGHTS)
    shutil.rmtree(warehouse(settings) / FLIGHTS)
    with pytest.raises(LedgerMismatch):
        project_dataset(open_writer(settings), settings, FLIGHTS)
    Stream(settings).run(0, 1)
    with pytest.raises(LedgerMismatch, match="another time"):
        project_dataset(open_writer(settings), settings, FLIGHTS)
    assert not rebuild(settings).identical
    assert project_dataset(open_writer(settings), settings, FLIGHTS).commits == 0


def test_shorter_table_is_refused(stream: Stream, writer: LedgerWriter, settings: Settings) -> None:
    stream.run(0, 3)
    project_dataset(writer, settings, FLIGHTS)
    shutil.rmtree(warehouse(settings) / FLIGHTS)
    Stream(settings).bronze(0)
    with pytest.raises(LedgerMismatch, match="up to"):
        project_dataset(open_writer(settings), settings, FLIGHTS)


def test_truncated_beginning_of_a_log_is_reported(stream: Stream, writer: LedgerWriter, settings: Settings) -> None:
    stream.run(0, 3)
    for version in range(3):
        (bronze_path(settings, FLIGHTS) / "_delta_log" / f"{version:020d}.json").unlink()
    assert project_dataset(writer, settings, FLIGHTS).cleaned == {"flights/bronze": 3}
    assert rebuild(settings).cleaned == {"flights/bronze": 3}
    assert [batch.batch for batch in open_reader(settings).last_batches()] == [2, 3]


def test_damaged_log_leaves_the_ledger_unchanged(stream: Stream, writer: LedgerWriter, settings: Settings) -> None:
    stream.run(0, 1)
    project_dataset(writer, settings, FLIGHTS)
    live = everything(settings)
    (bronze_path(settings, FLIGHTS) / "_delta_log" / f"{1:020d}.json").write_bytes(b"")
    with pytest.raises(LogDamaged):
        rebuild(settings)
    assert everything(settings) == live


def test_unreadable_metadata_names_commit_and_key(stream: Stream, settings: Settings) -> None:
    stream.bronze(0)
    whole = read_commit(bronze_path(settings, FLIGHTS), 1)
    assert whole.metadata is not None
    for key in ("batches", "rows", "offsets", "epoch", "timestamps", "topic_id"):
        broken = replace(whole, metadata={k: v for k, v in whole.metadata.items() if k != key})
        with pytest.raises(Terminal, match=f"its metadata cannot be read.*{key}"):
            rows_of_commit(broken)


def test_rule_counts_of_earlier_versions_are_read(stream: Stream, settings: Settings) -> None:
    stream.run(0, 0)
    whole = read_commit(rejected_path(settings, FLIGHTS, RELEASE), 1)
    earlier = {"late": {"judged": 17, "broken": 1, "first": [1, 4]}}
    found = [
        row.values for row in rows_of_commit(replace(whole, metadata=(whole.metadata or {}) | {"warnings": earlier}))
    ]
    assert [(row["rule"], row["validated"], row["violations"]) for row in found if "rule" in row] == [("late", 17, 1)]


def test_empty_batch_has_no_timestamps(stream: Stream, settings: Settings) -> None:
    stream.bronze(0)
    whole = read_commit(bronze_path(settings, FLIGHTS), 1)
    empty = {"rows": 0, "timestamps": None, "offsets": {}, "rows_by_partition": {}}
    (row,) = rows_of_commit(replace(whole, metadata=(whole.metadata or {}) | empty))
    assert (row.values["rows"], row.values["first_timestamp_ms"]) == (0, None)


def test_ledger_holds_several_datasets_and_releases(writer: LedgerWriter, settings: Settings) -> None:
    weather = Stream(settings, dataset="weather", release="w" * 12, gold=("weather_days",))
    old, new = Stream(settings), Stream(settings, release="0" * 12)
    weather.run(0, 0)
    old.run(0, 1)
    new.refine(0, 1)
    new.publish(1)
    for dataset in (FLIGHTS, "weather"):
        project_dataset(writer, settings, dataset)
    published = {(row[0], row[1], row[2]) for row in everything(settings)["publications"]}
    assert published == {("weather", "w" * 12, 0), (FLIGHTS, RELEASE, 1), (FLIGHTS, "0" * 12, 1)}
    assert rebuild(settings).identical
    assert set(open_reader(settings).totals()[FLIGHTS].releases) == {RELEASE, "0" * 12}
    assert len(open_reader(settings).last_batches("weather")) == 1


def test_reading_a_missing_ledger_does_not_create_it(settings: Settings) -> None:
    with raises(Transient, "ledger-missing"):
        open_reader(settings).totals()
    assert not ledger_file(settings).exists()


def test_state_folder_without_tables_is_rebuilt_to_an_empty_ledger(settings: Settings) -> None:
    rebuilt = rebuild(settings)
    assert (rebuilt.commits, set(rebuilt.rows.values())) == (0, {0})
    assert find_publication(settings, FLIGHTS) is None
