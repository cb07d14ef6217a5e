"""`headrace explain` names the records of a row of gold and refuses what names none; `lineage` prints the graph."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from small_warehouse import SALES_CONTRACT, SmallWarehouse, at, bronze_metadata, bronze_row, silver_row

from include.audit import origin
from include.audit.origin import OpenRows, _recent, open_rows
from include.cli import main
from include.declare.dataset import released_dataset, snapshot_dataset
from include.declare.gold import ON_CLOSE, Gold
from include.declare.pipeline import load_pipeline
from include.declare.windows import Session
from include.ground.settings import load_settings
from include.read.published_tables import pinned

PIPELINE = """
topic: sales
event_time: sold_at
lateness: 1 days
identity: {columns: [event_id], horizon: 3 days}
gold:
  shop_days:
    kind: additive
    where: kind = 'sold'
    window: {column: sold_at, size: 1 day, as: day}
    keys: [shop]
    measures: {sales: {count: "*"}}
"""
GOLD = {"day": at(2).date(), "shop": "north", "sales": 2, "_first_batch": 0, "_last_batch": 1, "_revision": 2}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line over a small warehouse: exit code, stdout, stderr."""
    folder = tmp_path / "datasets" / "sales"
    folder.mkdir(parents=True)
    (folder / "contract.yaml").write_text(SALES_CONTRACT)
    (folder / "pipeline.yaml").write_text(PIPELINE)
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("HEADRACE_DATASETS", str(folder.parent))
    load_settings.cache_clear()
    made = SmallWarehouse(load_settings(), release=snapshot_dataset(load_settings(), "sales").release)
    made.write("bronze", [bronze_row(n, b"payload %d" % n) for n in range(6)], bronze_metadata(0, {0: (0, 6)}))
    sold = [silver_row(n, f"a{n}", sold_at=at(2), batch=n // 3) for n in (1, 4)]
    others = [
        silver_row(0, "day before", sold_at=at(1)),
        silver_row(2, "another shop", sold_at=at(2), shop="south"),
        silver_row(3, "not sold", sold_at=at(2), kind="shown"),
    ]
    made.write("silver", [*sold, *others])
    made.write("gold", [{**GOLD, "turnover": None, "mean_amount": None, "kinds": 1, "_month": "2026-03"}])
    made.move(1)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["headrace", *arguments])
        with pytest.raises(SystemExit) as left:
            main.main()
        printed = capsys.readouterr()
        return int(left.value.code or 0), printed.out, printed.err

    yield call
    load_settings.cache_clear()


def test_records_of_a_row_are_those_of_its_grain_alone(run: Run) -> None:
    code, out, _ = run("explain", "gold.shop_days", "--key", "day=2026-03-02", "--key", "shop=north", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["topic"], [row["sales"] for row in found["rows"]]) == ("sales", [2])
    assert [(each["batch"], each["first"], each["records"]) for each in found["ranges"]] == [(0, 1, 1), (1, 4, 1)]


def test_payloads_of_records_come_from_bronze(run: Run) -> None:
    keys = ("--key", "day=2026-03-02", "--key", "shop=north")
    _, out, _ = run("explain", "gold.shop_days", *keys, "--records", "1")
    assert "2 records" in out
    assert out.rstrip().endswith("0/1  payload 1")


def test_row_that_is_not_there_is_not_explained_by_the_command_just_given(run: Run) -> None:
    code, _, err = run("explain", "gold.shop_days", "--key", "day=2026-03-09", "--key", "shop=north")
    assert code == 2
    assert "headrace explain" not in err
    assert 'headrace query "select day, shop from gold.shop_days limit 20"' in " ".join(err.split())


def closing() -> Gold:
    """Return the table as one that waits for the watermark."""
    return replace(load_pipeline(load_settings().datasets / "sales").gold[0], refresh=ON_CLOSE)


def test_row_of_an_open_window_says_when_it_closes_and_who_holds_the_watermark(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def released(*names: Any) -> Any:
        found = released_dataset(*names)
        return replace(found, pipeline=replace(found.pipeline, gold=(closing(),)))

    monkeypatch.setattr(origin, "released_dataset", released)
    code, _, err = run("explain", "gold.shop_days", "--key", "day=2026-03-09", "--key", "shop=north")
    words = " ".join(err.split())
    assert code == 2
    assert "its window is open: it closes when the watermark, at nowhere yet, reaches 2026-03-10 00:00:00 UTC" in words
    assert "headrace grains --dataset sales" in words


def test_rows_of_open_windows_are_counted(run: Run) -> None:
    assert run
    gold, reading = closing(), pinned(load_settings())
    assert open_rows(reading, "sales", gold, None) == OpenRows(3, at(2).replace(hour=0))
    assert open_rows(reading, "sales", gold, at(2)) == OpenRows(2, at(3).replace(hour=0))
    assert open_rows(reading, "sales", gold, at(3).replace(hour=0)) == OpenRows(0, None)


def test_open_rows_of_a_declaration_that_duckdb_cannot_evaluate_are_not_known(run: Run) -> None:
    assert run
    gold = replace(closing(), where="no_such_function(shop) > 1")
    assert open_rows(pinned(load_settings()), "sales", gold, None) == OpenRows(None, None)


def test_open_sessions_are_counted_from_recent_rows_alone(run: Run) -> None:
    assert run
    gold = replace(closing(), window=None, session=Session("sold_at", timedelta(hours=6)))
    reading = pinned(load_settings())
    assert open_rows(reading, "sales", gold, None).rows == 3
    assert open_rows(reading, "sales", gold, at(2)).rows == 2
    assert _recent(reading, "silver.sales", gold, at(2)).count_rows() == 4
    assert open_rows(reading, "sales", gold, at(3)).rows == 0


REFUSED = {
    ("silver.sales", "shop=north"): "is not a table of gold",
    ("gold.nothing", "shop=north"): "is unknown",
    ("gold.shop_days", "shop=north"): "--key is missing for day",
    ("gold.shop_days", "sales=2"): "sales does not name its rows; day, shop do",
    ("gold.shop_days", "shop=north", "day=soon"): "day=",
    ("gold.shop_days", "shop=west", "day=2026-03-02"): "has no row with shop=west, day=2026-03-02",
    ("gold.shop_days", "shop"): "'shop' is not COLUMN=VALUE",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_names_no_row_is_refused_with_the_next_command(run: Run, arguments: tuple[str, ...]) -> None:
    table, *keys = arguments
    code, out, err = run("explain", table, *(part for key in keys for part in ("--key", key)))
    assert (code, out) == (2, "")
    assert REFUSED[arguments] in " ".join(err.split())


def test_lineage_leads_from_the_topic_to_gold(run: Run) -> None:
    _, out, _ = run("lineage", "--json")
    edges = {(edge["source"], edge["target"]) for edge in json.loads(out)}
    silver = ("silver.sales", "gold.shop_days")
    assert edges == {("topic sales", "bronze.sales"), ("bronze.sales", "silver.sales"), silver} | {
        ("bronze.sales", "rejected.sales")
    }
    _, out, _ = run("lineage")
    assert (
        out.index("topic sales")
        < out.index("bronze.sales")
        < out.index("gold.shop_days  additive by day (1 day), shop")
    )
