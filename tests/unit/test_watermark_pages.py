"""The pages of a dataset and a table say which partition holds the watermark, and what a table on close waits for."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from include.observe.watermark import PartitionState, PartitionTime, TableWait, WatermarkStatus, watermark_json
from include.serve.pages import PAGES
from include.serve.tables import table_waits

AT = datetime(2026, 11, 1, tzinfo=UTC)
AHEAD = PartitionTime(0, AT + timedelta(hours=9), PartitionState.WAITING, AT, holds=False)
QUIET = PartitionTime(2, AT, PartitionState.LAGGING, AT + timedelta(hours=1), holds=True)
WAIT = TableWait("gold.hours", AT + timedelta(hours=1))
FOUND = WatermarkStatus(AT - timedelta(hours=2), timedelta(minutes=5), (AHEAD, QUIET), (WAIT,))


def test_page_of_a_dataset_names_the_partition_that_holds_the_watermark() -> None:
    macros: Any = PAGES.get_template("console/tabs.html.j2").module
    shown = macros.watermark_table(FOUND)
    assert "Complete up to 2026-10-31 22:00:00 UTC. Partition 2 (lagging) holds the watermark: its latest row" in shown
    assert "its latest row is of 2026-11-01 00:00:00" in shown
    assert "idle after 5 min" in shown
    rows = re.findall(r'<th scope="row">(\d)</th>.*?<td>([^<]*)</td></tr>', shown)
    assert rows == [("0", ""), ("2", "holds it")]
    assert "<table>" not in macros.watermark_table(None)


def test_page_of_a_table_says_what_it_waits_for() -> None:
    waits = table_waits("gold.hours", FOUND)
    assert waits[0] == "gold.hours: the next window closes when the watermark reaches 2026-11-01 01:00:00"
    assert "partition 2" in waits[1]
    assert table_waits("gold.other", FOUND) == table_waits("gold.hours", None) == []


def test_status_as_json_has_each_partition() -> None:
    found = watermark_json(FOUND)
    assert isinstance(found, dict)
    assert (found["held_by"], found["idle_after_seconds"]) == (2, 300)
    assert found["partitions"]["2"]["state"] == "lagging"
    assert found["waiting"] == {"gold.hours": "2026-11-01T01:00:00+00:00"}
    assert watermark_json(None) is None
