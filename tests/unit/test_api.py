"""The functions for Python programs: the values that they return, and their typed errors."""

from __future__ import annotations

import pytest
from small_warehouse import SmallWarehouse, silver_row

from include import api
from include.ground.errors import HeadraceError
from include.ground.settings import Settings
from include.read.published_tables import TableUnknown


@pytest.fixture
def warehouse(settings: Settings) -> SmallWarehouse:
    made = SmallWarehouse(settings)
    made.write("silver", [silver_row(0, "a"), silver_row(1, "b")])
    made.move(0)
    return made


def test_rows_are_read_and_queried(settings: Settings, warehouse: SmallWarehouse) -> None:
    read = api.read("silver.sales", columns=["event_id"], settings=settings).collect()
    assert sorted(read["event_id"].to_list()) == ["a", "b"]
    found = api.query("select event_id, 1 as one from silver.sales order by event_id", settings=settings)
    assert (found.columns, found.rows()) == (["event_id", "one"], [("a", 1), ("b", 1)])
    with pytest.raises(TableUnknown):
        api.read("silver.nothing", settings=settings)


def test_subscription_begins_with_the_whole_table(settings: Settings, warehouse: SmallWarehouse) -> None:
    change = next(api.subscribe("silver.sales", settings=settings))
    assert sorted(change.added["event_id"].to_pylist()) == ["a", "b"]


def test_status_and_plans_of_an_idle_state_folder(settings: Settings) -> None:
    assert [each.dataset for each in api.status(settings=settings).datasets] == ["flights", "weather"]
    assert api.plans(settings=settings) == []
    with pytest.raises(HeadraceError):
        api.plan("release-flights-1", settings=settings)
