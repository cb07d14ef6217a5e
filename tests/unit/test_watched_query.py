"""A watched query prints its result, then the rows that each publication changes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest
from small_warehouse import SmallWarehouse, silver_row

from include.cli import main
from include.cli import query as query_command
from include.ground.settings import Settings, load_settings
from include.read.published_sql import QueryFailed
from include.read.subscription import ResultChange, watched_changes

COUNTS = "select shop, count(*) as n from silver.sales group by shop"


@pytest.fixture
def warehouse(settings: Settings) -> SmallWarehouse:
    made = SmallWarehouse(settings)
    made.write("silver", [silver_row(0, "a"), silver_row(1, "b", shop="south")])
    made.move(0)
    return made


def publish_more(made: SmallWarehouse) -> None:
    made.write("silver", [silver_row(2, "c"), silver_row(3, "d", shop="west")])
    made.move(1)


def watched(settings: Settings, made: SmallWarehouse, sql: str, limit: int | None = None) -> Iterator[ResultChange]:
    """Watch; the first wait publishes more, the second ends."""
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            publish_more(made)

    return watched_changes(settings, sql, limit, stop=lambda: len(waits) > 1, sleep=wait)


def test_publication_changes_only_the_rows_that_differ(settings: Settings, warehouse: SmallWarehouse) -> None:
    whole, change = watched(settings, warehouse, COUNTS)
    assert (whole.columns, whole.total, dict(whole.batches)) == (("shop", "n"), 2, {"sales": 0})
    assert sorted(whole.rows) == [(1, "north", 1), (1, "south", 1)]
    assert sorted(change.rows) == [(-1, "north", 1), (1, "north", 2), (1, "west", 1)]
    assert (change.total, dict(change.batches)) == (3, {"sales": 1})


def test_rows_are_limited_and_counts_are_not(settings: Settings, warehouse: SmallWarehouse) -> None:
    whole, change = watched(settings, warehouse, COUNTS, limit=1)
    assert (len(whole.rows), whole.new, whole.gone) == (1, 2, 0)
    assert (len(change.rows), change.new, change.gone) == (1, 2, 1)


def test_columns_of_the_same_name_are_watched(settings: Settings, warehouse: SmallWarehouse) -> None:
    whole, _ = watched(
        settings, warehouse, "select a.shop, b.shop from silver.sales as a join silver.sales as b using (event_id)"
    )
    assert (whole.columns, whole.new) == (("shop", "shop"), 2)


def test_query_of_no_table_runs_once(settings: Settings, warehouse: SmallWarehouse) -> None:
    (only,) = watched(settings, warehouse, "select 1 as one")
    assert only.rows == ((1, 1),)


def test_wrong_query_fails_at_once(settings: Settings, warehouse: SmallWarehouse) -> None:
    with pytest.raises(QueryFailed):
        next(watched(settings, warehouse, "select nothing from silver.sales"))


@pytest.mark.parametrize("format", ["table", "json"])
def test_command_prints_changes_until_ctrl_c(
    settings: Settings,
    warehouse: SmallWarehouse,
    format: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def changes(_: Settings, sql: str, limit: int | None) -> Iterator[ResultChange]:
        yield from watched(settings, warehouse, sql, limit)
        raise KeyboardInterrupt

    monkeypatch.setenv("HEADRACE_STATE", str(settings.state))
    load_settings.cache_clear()
    monkeypatch.setattr(query_command, "watched_changes", changes)
    monkeypatch.setattr(sys, "argv", ["headrace", "query", COUNTS, "--watch", "--format", format])
    with pytest.raises(SystemExit) as left:
        main.main()
    load_settings.cache_clear()
    printed = capsys.readouterr().out
    assert left.value.code == 130
    if format == "json":
        lines = [json.loads(line) for line in printed.splitlines()]
        assert [line["batches"] for line in lines] == [{"sales": 0}, {"sales": 1}]
        assert lines[1]["removed"] == [{"shop": "north", "n": 1}]
        return
    assert "sales batch 1: 2 new, 1 gone, 3 in all" in printed
    assert [line.split() for line in printed.splitlines() if "west" in line] == [["+", "west", "1"]]
