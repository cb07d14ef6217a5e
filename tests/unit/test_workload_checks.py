"""What the demo of the workloads compares between orders of arrival."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import polars as pl
import pytest
from workloads.checks import bytes_of_rows
from workloads.orders_checked import orders_file, orders_so_far
from workloads.outcome import OtherEvents, refuse_other_events

from include.ground.settings import Settings

TEXTS = [f"a text of over twelve bytes, {number // 10:04}" for number in range(2000)]
ROWS = pl.DataFrame({"text": TEXTS, "number": range(2000)})


def from_parquet(rows: pl.DataFrame) -> pl.DataFrame:
    file = BytesIO()
    rows.write_parquet(file, row_group_size=400)
    return pl.read_parquet(file.getvalue())


def test_equal_rows_have_equal_bytes_in_whatever_order_they_were_written() -> None:
    written = ROWS.sample(fraction=1, shuffle=True, seed=1)
    assert bytes_of_rows(from_parquet(written)) == bytes_of_rows(from_parquet(ROWS))


def test_other_rows_have_other_bytes() -> None:
    assert bytes_of_rows(ROWS[:-1]) != bytes_of_rows(ROWS)
    changed = ROWS.with_columns(pl.when(number=77).then(pl.lit("a text")).otherwise("text").alias("text"))
    assert bytes_of_rows(changed) != bytes_of_rows(ROWS)


def test_interrupted_comparison_of_orders_continues_unless_gold_is_another(settings: Settings) -> None:
    group, gold = ["orders", "lineitem"], {"orders": {"gold.days": b"1"}, "lineitem": {"gold.days": b"2"}}
    fresh = orders_so_far(settings, group, gold)
    assert fresh.equal == {}
    orders_file(settings, group).write(replace(fresh, equal={1: ["orders"], 2: group}))
    assert orders_so_far(settings, group, gold).equal == {1: ["orders"], 2: group}
    assert orders_so_far(settings, group, {**gold, "lineitem": {"gold.days": b"3"}}).equal == {}
    assert orders_so_far(settings, group, {"orders": {"gold.days": b"12"}, "lineitem": {"gold.days": b""}}).equal == {}


def test_another_number_of_events_is_refused_before_anything_is_started(settings: Settings) -> None:
    manifest = settings.state / "workloads" / "posts.manifest.jsonl"
    manifest.parent.mkdir(parents=True)
    manifest.write_text('{"fault": "run", "run": {"feed": "posts"}, "finished": true}\n')
    with pytest.raises(OtherEvents, match="another number of events of posts"):
        refuse_other_events(settings, ["orders", "posts"], 100)
    refuse_other_events(settings, ["orders"], 100)
    assert [path.name for path in settings.state.iterdir()] == ["workloads"]
