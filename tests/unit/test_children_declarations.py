"""Children: what is declared, what is refused with file, line and key, and their rows in DuckDB's SQL."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from workloads.registry import DATASETS

from include.declare.children import Elements
from include.declare.column_lineage import dataset_columns
from include.declare.dataset import declared_dataset
from include.declare.dataset_checks import dataset_problems
from include.declare.derived_dataset import lineage_edges
from include.ground.paths import table_path
from include.ground.settings import Settings
from include.read.memory_database import memory_database

NAME = "shop_orders"
DECLARED = "{from: items, identity: [line_no], on_bad_child: reject_child}"
Edit = tuple[str, str, str]
REFUSED: dict[str, tuple[Edit, str, str]] = {
    "no such column": (("pipeline", "from: items", "from: lines"), "children.items.from", "arrays: items"),
    "no array": (("pipeline", "from: items", "from: shop"), "children.items.from", "is 'shop'"),
    "no such field": (("pipeline", "[line_no]", "[number]"), "children.items.identity[0]", "fields: line_no, sku"),
    "no single value": (("pipeline", "[line_no]", "[options]"), "children.items.identity[0]", "names no element"),
    "field twice": (("pipeline", "[line_no]", "[sku, sku]"), "children.items.identity[1]", "occurs twice"),
    "other policy": (("pipeline", "reject_child", "ignore"), "children.items.on_bad_child", "reject_record"),
    "no such children": (("pipeline", "over: items", "over: lines"), "gold.product_days.over", "(items)"),
    "time of an element": (
        (
            "contract",
            "name: options, logicalType: array, items: {logicalType: string}",
            "name: at, logicalType: timestamp",
        ),
        "gold.product_days.window.column",
        "is of an element",
    ),
    "name of a column": (("contract", "name: sku,", "name: shop,"), "children.items.from", "item_shop, physicalName"),
    "null elements": (("contract", "object\n          required: true", "object"), "children.items.from", "may be null"),
    "expiry": (("pipeline", "gold:", "retention: {silver: 90 days}\n\ngold:"), "retention.silver", "with children"),
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    shutil.copytree(DATASETS / NAME, tmp_path / NAME, ignore=shutil.ignore_patterns("__pycache__"))
    return Settings(state=tmp_path / "state", datasets=tmp_path)


@pytest.fixture
def edit(settings: Settings) -> Callable[[Edit], None]:
    def edited(change: Edit) -> None:
        path = settings.datasets / NAME / f"{change[0]}.yaml"
        text = path.read_text()
        assert change[1] in text
        path.write_text(text.replace(change[1], change[2], 1))

    return edited


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_children_are_refused(case: str, settings: Settings, edit: Callable[[Edit], None]) -> None:
    change, key, words = REFUSED[case]
    edit(change)
    if case == "time of an element":
        edit(
            (
                "pipeline",
                "{column: placed_at, size: 1 day, as: day}\n    keys: [sku]",
                "{column: at, size: 1 day, as: day}\n    keys: [sku]",
            )
        )
    found = {problem.key: problem.why for problem in dataset_problems(settings, NAME)}
    assert words in found.get(key, ""), found


def test_sessions_and_unknown_columns_are_refused(settings: Settings, edit: Callable[[Edit], None]) -> None:
    edit(("pipeline", "units: {sum: quantity}", "units: {sum: items.quantity}"))
    (problem,) = dataset_problems(settings, NAME)
    assert (problem.key, "'items' is not a column" in problem.why) == ("gold.product_days.measures.units.sum", True)
    edit(("pipeline", "items.quantity", "quantity"))
    edit(
        (
            "pipeline",
            "window: {column: placed_at, size: 1 day, as: day}\n    keys: [sku]",
            "session: {column: placed_at, gap: 5 minutes}\n    keys: [sku]",
        )
    )
    (problem,) = dataset_problems(settings, NAME)
    assert (problem.key, "cannot have one" in problem.why) == ("gold.product_days.session", True)


def test_children_that_are_named_as_a_dataset_are_refused(settings: Settings) -> None:
    shutil.copytree(DATASETS / "orders", settings.datasets / f"{NAME}__items")
    (problem,) = dataset_problems(settings, NAME)
    assert (problem.key, f"a dataset {NAME}__items" in problem.why) == ("children.items", True)


def test_children_are_tables_of_the_dataset(settings: Settings) -> None:
    dataset = declared_dataset(settings, NAME)
    children, bad, *gold = dataset.pipeline.gold
    assert (children.table, bad.table) == ("silver.shop_orders__items", "rejected.shop_orders__items")
    assert children.row_columns == ("_offset", "_partition", "_index")
    assert [each.over for each in gold] == [None, *[children.over] * 3]
    folder = table_path(settings, NAME, "r", "silver.shop_orders").parent
    assert table_path(settings, NAME, "r", children.table) == folder / "gold" / children.table
    assert {edge.target for edge in lineage_edges(dataset)} >= {children.table, bad.table}


def test_lineage_of_an_element_leads_to_its_array(settings: Settings) -> None:
    known = dataset_columns(declared_dataset(settings, NAME))
    children, days = known["silver.shop_orders__items"].columns, known["gold.product_days"].columns
    assert [(each.table, each.column) for each in children["sku"]] == [("silver.shop_orders", "items")]
    assert [each.column for each in days["revenue"]] == ["items"]
    assert [each.column for each in days["day"]] == ["placed_at"]


def test_rejected_elements_need_a_release_whose_children_are_rejected_alone(
    settings: Settings, edit: Callable[[Edit], None]
) -> None:
    edit(("pipeline", DECLARED, "{from: items}"))
    tables = [gold.table for gold in declared_dataset(settings, NAME).pipeline.gold]
    assert tables[:2] == ["silver.shop_orders__items", "gold.country_days"]


def test_rows_of_elements_in_sql() -> None:
    database = memory_database()
    reason = "{'rule': 'range', 'column': 'items[1].n', 'detail': 'x'}"
    database.execute(f"""
    create table silver as select * from (values
        (1, [{{'n': 10}}, {{'n': 11}}], [{reason}]), (2, [], []), (3, null, null), (4, [{{'n': 40}}], null)
    ) as rows(id, items, _bad_children)
    """)
    names = ["id", "items", "_bad_children"]
    good, strict = Elements("x", "items", ("n",), rejects=True), Elements("x", "items", ("n",))
    assert good.rejected is not None

    def rows(each: Elements) -> list[tuple[object, ...]]:
        columns = ", ".join(each.columns(names))
        return database.execute(f"select {columns} from {each.sql('silver', names)} order by 1, 2").fetchall()

    assert rows(good) == [(1, 0, 10), (4, 0, 40)]
    assert rows(strict) == [(1, 0, 10), (1, 1, 11), (4, 0, 40)]
    assert [(row[0], row[1], row[2][0]["column"]) for row in rows(good.rejected)] == [(1, 1, "items[1].n")]  # type: ignore[index]
