"""Gold after a balanced audit: what newer records touch is recomputed, all else must be as it was verified."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from kept_gold import KeptSales, sold

from include.audit import changed_gold
from include.audit.balance import DatasetAudit
from include.audit.changed_gold import MOST_SPANS, merged_spans
from include.ground.delta_log import current_files

FIRST = [sold(1, 1, 9), sold(1, 1, 20, "south", "4.00")]
SECOND = [sold(2, 1, 9), sold(2, 1, 9.5, "south"), sold(2, 28, 23, "south")]
KEYED = ("shop_status", "shop_totals", "shop_reach")
TIMED = ("shop_days", "shop_hours", "best_sales", "shop_sessions", "behind_days", "closed_days")
MARCH_2 = datetime(2026, 3, 2, tzinfo=UTC)
MARCH_10 = datetime(2026, 3, 10, tzinfo=UTC)


def audited_sales(folder: Path, without: tuple[str, ...] = ()) -> KeptSales:
    """Return tables of January and February whose two batches were audited."""
    made = KeptSales(folder, without)
    made.watermark, made.behind = datetime(2026, 2, 20, tzinfo=UTC), 0
    made.add(*FIRST)
    made.add(*SECOND)
    first = made.audit()
    assert first.balanced, first.findings or first.unchecked
    assert {check.earlier for check in first.gold} == {0}
    return made


@pytest.fixture(scope="module")
def first_sales(tmp_path_factory: pytest.TempPathFactory) -> KeptSales:
    return audited_sales(tmp_path_factory.mktemp("first"))


@pytest.fixture
def sales(first_sales: KeptSales, tmp_path: Path) -> KeptSales:
    return first_sales.copied(tmp_path / "copy")


def wrong(audit: DatasetAudit) -> set[tuple[str, str]]:
    return {(finding.kind.value, finding.table.removeprefix("gold.")) for finding in audit.findings}


def recomputed(audit: DatasetAudit) -> dict[str, tuple[int, int]]:
    """Return by table the rows that were not recomputed, and the grains that were."""
    return {check.table.removeprefix("gold."): (check.earlier, check.grains) for check in audit.gold}


def test_only_grains_of_newer_records_are_recomputed(sales: KeptSales) -> None:
    sales.watermark, sales.behind = MARCH_2, 1
    sales.add(sold(3, 5, 9, "south"), sold(2, 1, 10, "south", "9.00", kind="void"))
    second = sales.audit()
    assert second.balanced, second.findings or second.unchecked
    assert recomputed(second) == {
        "shop_days": (4, 2),
        "shop_hours": (7, 4),
        "shop_status": (1, 1),
        "shop_totals": (1, 1),
        "shop_reach": (1, 1),
        "best_sales": (4, 2),
        "shop_sessions": (4, 2),
        "behind_days": (1, 2),
        "closed_days": (1, 2),
    }
    assert sales.audit(full=True).balanced


def test_nothing_is_recomputed_without_new_records(sales: KeptSales) -> None:
    assert {grains for _, grains in recomputed(sales.audit()).values()} == {0}


@pytest.mark.extended
def test_old_rows_of_silver_and_files_of_other_grains_are_not_read(tmp_path: Path) -> None:
    """The files that are zeros would fail the audit, and do fail one that reads everything."""
    sales = audited_sales(tmp_path, without=("shop_reach",))
    sales.add(sold(3, 1, 9, "south"), sold(3, 1, 9.5, "south"), duplicate_of=(1, 2))
    unreadable = [sales.make_unreadable("silver.sales", "_month=2026-01")]
    unreadable += [sales.make_unreadable(f"gold.{table}", "_part=2026-01", "_part=2026-02") for table in TIMED]
    unreadable += [sales.make_unreadable(f"gold.{table}", "_part=n") for table in KEYED if table != "shop_reach"]
    assert all(unreadable)
    second = sales.audit()
    assert second.balanced, second.findings or second.unchecked
    assert not sales.audit(full=True).balanced


@pytest.mark.extended
def test_duplicate_whose_winner_is_elsewhere_than_it_names_is_right_and_one_without_is_found(sales: KeptSales) -> None:
    sales.add(duplicate_of=(1, 0))
    assert sales.audit().balanced
    sales.add(duplicate_of=(0, 99))
    assert wrong(sales.audit()) == {("different", "rejected.sales")}


def test_table_of_keys_without_mergeable_values_reads_all_rows_of_silver(sales: KeptSales) -> None:
    sales.add(sold(3, 1, 9, "south"))
    sales.make_unreadable("silver.sales", "_month=2026-01")
    assert {skipped.table for skipped in sales.audit().unchecked} >= {"gold.shop_reach"}


CHANGES: dict[str, Callable[[pl.DataFrame], pl.DataFrame]] = {
    "value": lambda rows: rows.with_columns(_other(rows)),
    "lost": lambda rows: rows[1:],
    "twice": lambda rows: pl.concat([rows, rows[:1]]),
}


def _other(rows: pl.DataFrame) -> pl.Expr:
    """Return the first declared value column, changed."""
    name = next(name for name in rows.columns if name in ("sales", "last", "kinds", "amount", "events"))
    kind = rows[name].dtype
    return pl.lit("other").alias(name) if kind == pl.String else (pl.col(name) + 7).cast(kind).alias(name)


@pytest.fixture(scope="module")
def grown_sales(first_sales: KeptSales, tmp_path_factory: pytest.TempPathFactory) -> KeptSales:
    """The same with a third batch, which no audit has seen."""
    made = first_sales.copied(tmp_path_factory.mktemp("grown") / "copy")
    made.watermark, made.behind = MARCH_2, 2
    made.add(sold(2, 1, 11, "south"))
    return made


def chosen_rows(rows: pl.DataFrame, touched: bool) -> pl.Expr:
    """Return the condition of the rows whose grains the third batch touches, or of others."""
    if "shop" in rows.columns:
        return pl.col("shop") == ("south" if touched else "north")
    day = pl.col("day" if "day" in rows.columns else "since").cast(pl.Date)
    return (day == date(2026, 2, 1)) if touched else (day == date(2026, 1, 1))


# In make test each change once, and a touched grain as well as an untouched one.
QUICK_CHANGES = {("value", True), ("lost", False), ("twice", False)}


@pytest.mark.parametrize(
    ("touched", "change"),
    [
        pytest.param(
            touched,
            change,
            id=f"{'touched' if touched else 'untouched'}-{change}",
            marks=[pytest.mark.extended] * ((change, touched) not in QUICK_CHANGES),
        )
        for touched in (True, False)
        for change in CHANGES
    ],
)
def test_wrong_row_in_a_file_that_was_replaced_is_found(
    grown_sales: KeptSales, tmp_path: Path, change: str, touched: bool
) -> None:
    sales = grown_sales.copied(tmp_path / "copy")
    for table in (*TIMED, *KEYED):
        rows = sales.rows(table)
        chosen = chosen_rows(rows, touched)
        sales.replace(table, pl.concat([CHANGES[change](rows.filter(chosen)), rows.filter(~chosen)]))
    sales.publish()
    assert {name for _, name in wrong(sales.audit())} == {*TIMED, *KEYED}


@pytest.mark.parametrize("tables", [TIMED, KEYED], ids=["timed", "keyed"])
def test_tables_that_newer_records_did_not_reach_are_wrong(sales: KeptSales, tables: tuple[str, ...]) -> None:
    sales.watermark, sales.behind = MARCH_10, 2
    new = [sold(2, 1, 11, "south"), sold(3, 1, 9, "south"), sold(3, 1, 9, "south", kind="returned")]
    sales.add(*new, gold=False)
    sales.keep_gold([name for name in sales.gold if name not in tables])
    for table in {*tables} & {"behind_days", "closed_days"}:
        # It says that it has the new rows.
        sales.replace(table, sales.rows(table))
    sales.publish()
    assert {name for _, name in wrong(sales.audit())} == {*tables}


def test_row_of_a_replaced_version_that_is_still_published_is_found(sales: KeptSales) -> None:
    stale = sales.rows("shop_sessions")
    sales.add(sold(2, 1, 10.25, "south"))
    now = sales.rows("shop_sessions")
    assert now.height == stale.height, "the session was extended"
    sales.replace(
        "shop_sessions", pl.concat([now, stale.filter(pl.col("since") == datetime(2026, 2, 1, 9, 30, tzinfo=UTC))])
    )
    sales.publish()
    assert wrong(sales.audit()) == {
        ("surplus", "shop_sessions"),
    }


def test_late_record_that_joins_two_sessions_leaves_one(sales: KeptSales) -> None:
    sales.add(sold(2, 1, 11, "south"))
    assert sales.audit().balanced
    sales.add(sold(2, 1, 10.25, "south"))
    joined = sales.audit()
    assert joined.balanced, joined.findings
    assert recomputed(joined)["shop_sessions"] == (4, 1)


def test_replaced_file_that_is_gone_makes_its_table_be_recomputed_from_all_rows(sales: KeptSales) -> None:
    old = set(sales.tables.names["gold.shop_days"].rglob("_part=2026-02/*.parquet"))
    sales.add(sold(2, 1, 11, "south"))
    for file in old:
        file.unlink()
    second = sales.audit()
    assert second.balanced, second.findings
    assert (recomputed(second)["shop_days"][0], recomputed(second)["best_sales"][0] > 0) == (0, True)


def test_changed_old_file_of_gold_is_found(sales: KeptSales) -> None:
    table = sales.tables.names["gold.shop_totals"]
    file = table / next(path for path in current_files(table) if path.startswith("_part=n"))
    rows = pl.read_parquet(file)
    rows.with_columns(pl.col("turnover") + Decimal("1.00")).write_parquet(file)
    assert wrong(sales.audit()) >= {("different", "shop_totals")}


@pytest.mark.extended
def test_latest_table_that_keeps_a_wrong_order_is_computed_from_all_rows(tmp_path: Path) -> None:
    """Also after an audit that found the right order in all grains that newer records touch."""
    sales = audited_sales(tmp_path, without=("shop_reach",))

    def keep_wrong_order() -> None:
        order = pl.when(pl.col("shop") == "north").then(99).otherwise(pl.col("_by_offset"))
        (right,) = sales.right_rows("shop_status")
        sales.replace("shop_status", right.with_columns(order.alias("_by_offset")))
        sales.keep_gold([name for name in sales.gold if name != "shop_status"])
        sales.publish()

    keep_wrong_order()
    assert sales.audit().balanced, "readers see right rows"
    sales.add(sold(3, 1, 9, "south"), gold=False)
    keep_wrong_order()
    assert sales.audit().balanced
    sales.add(sold(3, 2, 9, "south"), gold=False)
    keep_wrong_order()
    sales.make_unreadable("silver.sales", "_month=2026-01")
    assert [skipped.table for skipped in sales.audit().unchecked][:1] == ["gold.shop_status"]


def test_watermark_that_went_back_is_found(sales: KeptSales) -> None:
    sales.watermark = datetime(2026, 1, 1, tzinfo=UTC)
    sales.replace("closed_days", sales.rows("closed_days"))
    sales.publish()
    assert wrong(sales.audit()) == {("surplus", "closed_days")}


def test_record_at_the_end_of_the_calendar_does_not_end_later_audits(sales: KeptSales) -> None:
    sales.add({**sold(3, 1, 9), "sold_at": datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)})
    assert sales.audit().balanced
    sales.add(sold(3, 1, 9))
    assert sales.audit().balanced


def test_replaced_file_that_is_deleted_during_the_audit_is_no_damage(
    sales: KeptSales, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = set(sales.tables.names["gold.shop_days"].rglob("_part=2026-02/*.parquet"))
    sales.add(sold(2, 1, 11, "south"))
    digest = changed_gold._digest

    def clean_up_first(database: Any, changed: changed_gold.ChangedGold, paths: frozenset[str]) -> tuple[int, int]:
        for file in old if changed.gold.name == "shop_days" else ():
            file.unlink(missing_ok=True)
        return digest(database, changed, paths)

    monkeypatch.setattr(changed_gold, "_digest", clean_up_first)
    second = sales.audit()
    assert second.balanced, second.findings
    assert recomputed(second)["shop_days"][0] == 0


def test_bounds_in_a_commit_that_its_file_contradicts_are_found(sales: KeptSales) -> None:
    """A driver, and an audit, that leave the file out by them would write and accept a second row of its grains."""
    sales.add(sold(2, 2, 9, "north"))
    log = max((sales.tables.names["gold.shop_totals"] / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    added = next(action["add"] for action in actions if "add" in action)
    stats = json.loads(added["stats"])
    stats["minValues"]["shop"], stats["maxValues"]["shop"] = "a", "b"
    added["stats"] = json.dumps(stats)
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))
    audit = sales.audit()
    assert wrong(audit) == {("damaged", "shop_totals")}
    assert "has shop north, b was committed as the greatest" in audit.findings[0].detail


def test_compacted_table_needs_no_recomputation(sales: KeptSales) -> None:
    rows = sales.rows("shop_days")
    sales.replace("shop_days", rows.with_columns(pl.col("sales") + 1))
    sales.replace("shop_days", rows)
    sales.publish()
    assert recomputed(sales.audit())["shop_days"] == (rows.height, 0)


def test_ranges_of_time_are_joined_over_the_smallest_gaps() -> None:
    assert merged_spans([(5, 6), (1, 3), (2, 4)]) == [(1, 4), (5, 6)]
    assert merged_spans([]) == []
    many = [(n * 100 + n % 2 * 90, n * 100 + n % 2 * 90 + 1) for n in range(2 * MOST_SPANS)]
    assert len(found := merged_spans(many)) == MOST_SPANS
    assert (found[0][0], found[-1][1]) == (many[0][0], many[-1][1])
