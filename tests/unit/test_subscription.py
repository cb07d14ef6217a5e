"""Subscribers get each changed row once, also when they are killed; tokens that cannot be used are refused."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from small_warehouse import SmallWarehouse, silver_row

from include.ground.paths import silver_path
from include.ground.settings import Settings
from include.read.publication import publish, read_publication
from include.read.published_tables import TableUnknown
from include.read.subscription import PublishedChange, TokenUnusable, subscribe

TABLE = "silver.sales"


@pytest.fixture
def warehouse(settings: Settings) -> SmallWarehouse:
    made = SmallWarehouse(settings)
    made.write("silver", [silver_row(0, "a"), silver_row(1, "b")])
    made.move(0)
    return made


def changes(settings: Settings, token: str | None = None) -> Iterator[PublishedChange]:
    """Yield what is published now; the subscription ends where it would wait."""
    waits: list[float] = []
    return subscribe(TABLE, token, settings=settings, stop=lambda: bool(waits), sleep=waits.append)


def first(settings: Settings, token: str | None = None) -> PublishedChange:
    return next(changes(settings, token))


def ids(rows: object) -> list[str]:
    return sorted(rows["event_id"].to_pylist())  # type: ignore[index]


def rewrite(settings: Settings, made: SmallWarehouse, condition: str) -> None:
    """Delete rows, which rewrites their file."""
    path = silver_path(settings, made.dataset, made.release)
    DeltaTable(str(path)).delete(condition)


def test_first_change_is_the_whole_table_and_the_next_only_what_is_new(
    settings: Settings, warehouse: SmallWarehouse
) -> None:
    whole = first(settings)
    assert (ids(whole.added), ids(whole.removed), whole.batch) == (["a", "b"], [], 0)
    assert whole.added.column_names[-3:] == ["_topic", "_partition", "_offset"]
    warehouse.write("silver", [silver_row(2, "c", batch=1)])
    warehouse.move(1)
    change = first(settings, whole.token)
    assert (ids(change.added), ids(change.removed), change.batch) == (["c"], [], 1)


def test_rewritten_rows_are_no_change_and_several_publications_are_one(
    settings: Settings, warehouse: SmallWarehouse
) -> None:
    token = first(settings).token
    warehouse.write("silver", [silver_row(2, "c"), silver_row(3, "d")])
    rewrite(settings, warehouse, "event_id = 'a'")
    rewrite(settings, warehouse, "event_id = 'd'")
    warehouse.move(2)
    change = first(settings, token)
    assert (ids(change.added), ids(change.removed)) == (["c"], ["a"])


def test_new_release_is_compared_as_a_whole(settings: Settings, warehouse: SmallWarehouse) -> None:
    token = first(settings).token
    old = read_publication(settings, "sales")
    other = SmallWarehouse(settings, release="fedcba987654")
    other.write("silver", [silver_row(1, "b"), silver_row(4, "e")])
    other.move(0)
    change = first(settings, token)
    assert (ids(change.added), ids(change.removed)) == (["e"], ["a"])
    publish(settings, replace(old, batch=1))
    back = first(settings, change.token)
    assert (ids(back.added), ids(back.removed)) == (["a"], ["e"])


def test_token_of_a_deleted_version_says_how_to_begin_again(settings: Settings, warehouse: SmallWarehouse) -> None:
    token = first(settings).token
    rewrite(settings, warehouse, "event_id = 'a'")
    warehouse.move(1)
    DeltaTable(str(silver_path(settings, "sales", warehouse.release))).vacuum(
        0, dry_run=False, enforce_retention_duration=False
    )
    with pytest.raises(TokenUnusable, match="subscribe again without a token"):
        first(settings, token)


@pytest.mark.parametrize(
    "token", ["", "{}", "[1]", '{"table": "gold.x", "path": "", "version": 1, "release": "", "batch": 0}']
)
def test_other_text_is_no_token(settings: Settings, warehouse: SmallWarehouse, token: str) -> None:
    with pytest.raises(TokenUnusable):
        first(settings, token or "x")


def test_unknown_table_is_refused(settings: Settings, warehouse: SmallWarehouse) -> None:
    with pytest.raises(TableUnknown):
        next(subscribe("gold.nothing", settings=settings))


class Killed(Exception):
    """The consumer ends without a word."""


def consume(settings: Settings, database: Path, kill_after: int) -> None:
    """Keep a copy of the table in SQLite; rows and token are written in one transaction, as README shows it."""
    with sqlite3.connect(database, isolation_level=None) as copy:
        copy.execute("create table if not exists rows (id text)")
        copy.execute("create table if not exists place (token text)")
        stored = copy.execute("select token from place").fetchone()
        for change in changes(settings, stored and stored[0]):
            steps = iter(range(10))
            copy.execute("begin")
            for row in change.removed["event_id"].to_pylist():
                copy.execute("delete from rows where id = ?", [row])
            if next(steps) == kill_after:
                raise Killed
            copy.executemany("insert into rows values (?)", [[row] for row in change.added["event_id"].to_pylist()])
            if next(steps) == kill_after:
                raise Killed
            copy.execute("delete from place")
            copy.execute("insert into place values (?)", [change.token])
            copy.execute("commit")
            if next(steps) == kill_after:
                raise Killed


@pytest.mark.parametrize("kill_after", range(3))
def test_consumer_killed_at_any_step_has_each_row_once(
    settings: Settings, warehouse: SmallWarehouse, tmp_path: Path, kill_after: int
) -> None:
    copy = tmp_path / "copy.sqlite"
    for batch, event in enumerate(["c", "d", "e"], 1):
        warehouse.write("silver", [silver_row(batch + 1, event)])
        rewrite(settings, warehouse, "event_id = 'b'")
        warehouse.move(batch)
        with pytest.raises(Killed):
            consume(settings, copy, kill_after)
        consume(settings, copy, kill_after=9)
    with sqlite3.connect(copy) as database:
        assert sorted(row for (row,) in database.execute("select id from rows")) == ["a", "c", "d", "e"]
        (token,) = database.execute("select token from place").fetchone()
    assert json.loads(token)["batch"] == 3


def test_tokens_hold_in_a_copy_of_the_state_folder(
    settings: Settings, warehouse: SmallWarehouse, tmp_path: Path
) -> None:
    token = first(settings).token
    shutil.copytree(settings.state, tmp_path / "moved")
    assert list(changes(Settings(state=tmp_path / "moved"), token)) == []
