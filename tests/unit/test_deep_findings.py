"""What a deep audit's job reports becomes findings, a repair command, and a result that resolves unchecked gold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from include.audit.balance import DatasetAudit, deep_audit, with_deep_audit
from include.audit.findings import Finding, FindingKind
from include.audit.gold import UncheckedTable


def table(name: str, **found: Any) -> dict[str, Any]:
    return {"table": name, "rows": 10, "counts": {}, "samples": [], "batches": None, **found}


def reported(*tables: dict[str, Any], first: int = 0) -> dict[str, Any]:
    return {"release": "r1", "batch": 9, "records": 12, "first": first, "differences": list(tables)}


def row(kind: str, label: str = "", **values: list[str | None]) -> dict[str, Any]:
    return {"kind": kind, "label": label, "values": values, "partition": 1, "offset": 7}


EQUAL = DatasetAudit("meter", "r1", 9, ())


def test_each_sample_is_a_finding_and_the_rest_are_counted() -> None:
    samples = [row("different", "event_id=e1", litres=["8", None]), row("missing", "event_id=e2")]
    silver = table("silver.meter", counts={"different": 3, "missing": 1}, samples=samples, batches=[2, 4])
    gold = table("gold.hours", counts={"surplus": 1}, samples=[row("surplus") | {"partition": None, "offset": None}])
    found = deep_audit("meter", reported(silver, gold | {"batches": [3, 6]}))
    assert found.findings == [
        Finding(FindingKind.different, "silver.meter", 1, "event_id=e1: litres is '8', bronze gives null", 1, 7, 8),
        Finding(
            FindingKind.missing, "silver.meter", 1, "event_id=e2: bronze gives this row, it is not published", 1, 7, 8
        ),
        Finding(FindingKind.different, "silver.meter", 2, "2 more rows"),
        Finding(FindingKind.surplus, "gold.hours", 1, "bronze does not give this row"),
    ]
    assert found.repair == "headrace replay run --dataset meter --batches 2..6 --source bronze"
    assert not with_deep_audit(EQUAL, found).balanced


def test_recomputed_gold_is_no_longer_unchecked() -> None:
    skipped = (
        UncheckedTable("gold.hours", "window(at, '5 minutes')", "DuckDB cannot evaluate it"),
        UncheckedTable("x", "", ""),
    )
    audit = with_deep_audit(replace(EQUAL, unchecked=skipped), deep_audit("meter", reported(table("gold.hours"))))
    assert audit.unchecked == skipped[1:]
    assert with_deep_audit(EQUAL, deep_audit("meter", reported(table("gold.hours")))).balanced


def test_inherited_batches_are_not_checked() -> None:
    audit = with_deep_audit(EQUAL, deep_audit("meter", reported(table("silver.meter"), first=5)))
    assert [each.reason for each in audit.unchecked] == ["batches before 5 were inherited from another release"]
