"""`headrace explain` names the records of a row of gold and refuses what names none; `lineage` prints the graph."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from small_warehouse import SALES_CONTRACT, SmallWarehouse, at, bronze_metadata, bronze_row, silver_row

from include.catalog.dataset import snapshot_dataset
from include.cli import main as command_line
from include.settings import load_settings

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
            command_line.main()
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
