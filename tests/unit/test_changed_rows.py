"""Gold of kind `changes` after a balanced audit: a truncation has all keys recomputed, and holds for later audits."""

from __future__ import annotations

from pathlib import Path

import kept_gold
import pytest
from kept_gold import KeptSales, sold

GOLD = """
changes:
  keys: [shop]
  sequence: [sold_at]
  operation: {column: kind, delete: [returned], truncate: [void]}
gold:
  shop_now:
    kind: changes
    columns: {last: event_id, amount: amount}
  shop_versions:
    kind: changes
    scd: 2
    columns: {amount: amount}
"""


def test_a_truncation_is_seen_by_each_later_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_gold, "PIPELINE", kept_gold.PIPELINE.partition("gold:")[0] + GOLD)
    sales = KeptSales(tmp_path)
    seen = []
    for records in (
        [sold(1, 1, 9), sold(1, 1, 20, "south", "4.00")],
        [sold(2, 1, 9, "south", "5.00")],
        [sold(2, 2, 9, kind="void"), sold(2, 3, 9, "east")],
        [sold(2, 1, 12, "south", "6.00"), sold(2, 4, 9, "west")],
        [sold(2, 5, 9, "west", kind="returned")],
    ):
        sales.add(*records)
        audit = sales.audit()
        assert audit.balanced, audit.findings or audit.unchecked
        seen.append({check.table: (check.rows, check.earlier) for check in audit.gold})
    assert [each["gold.shop_now"] for each in seen] == [(2, 0), (2, 1), (1, 0), (2, 1), (1, 1)]
    assert [each["gold.shop_versions"] for each in seen] == [(2, 0), (3, 1), (4, 0), (6, 2), (6, 5)]
    assert sales.audit(full=True).balanced
    sales.add(sold(2, 6, 9, kind="void"), gold=False)
    assert {finding.table for finding in sales.audit().findings} == {"gold.shop_now", "gold.shop_versions"}
