"""What differs between two releases of a dataset, table by table, and whether readers of the old one can continue."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from include.declare.contract import contract_changes
from include.declare.dataset import Dataset, declared_dataset, released_dataset
from include.declare.gold import Gold, full_name
from include.declare.pipeline import Pipeline
from include.declare.time_zones import difference_since
from include.ground.errors import HeadraceError
from include.ground.settings import Settings


@dataclass(frozen=True)
class TableChange:
    """What the changed folder means for one table: `kind` is additive, changed, removed or incompatible."""

    table: str
    kind: str
    why: str


def release_changes(base: Dataset, fresh: Dataset) -> list[TableChange]:
    """Return the differences between two releases by table; effects of silver on gold are not listed."""
    found: list[TableChange] = []
    if _differs(base, fresh, ["contract.yaml"]) or base.contract.types != fresh.contract.types:
        found += _contract_changes(base, fresh)
    if _differs(base, fresh, _modules(base, fresh)):
        found.append(TableChange("silver", "changed", "silver.py differs: rows or columns may differ"))
    if (base.pipeline.identity, base.pipeline.horizon) != (fresh.pipeline.identity, fresh.pipeline.horizon):
        found.append(TableChange("silver and rejected", "changed", "other records may be duplicates"))
    if base.pipeline.children != fresh.pipeline.children:
        why = "children are declared otherwise: other elements may reject their records"
        found.append(TableChange("silver and rejected", "changed", why))
    found += gold_changes(base.pipeline.gold, fresh.pipeline.gold)
    found += _watermark_changes(base.pipeline, fresh.pipeline)
    rest = [TableChange("all", "changed", "a file differs in another way")] if base.code != fresh.code else []
    return found or rest


def _watermark_changes(base: Pipeline, fresh: Pipeline) -> list[TableChange]:
    """Return what another lateness or another time until a partition is idle means for tables that wait for it."""
    if base.lateness != fresh.lateness:
        why = "lateness differs: its windows close at another watermark"
    elif base.idle != fresh.idle:
        why = "idle differs: from now on a quiet partition holds its windows open for another time"
    else:
        return []
    before = {gold.name for gold in base.gold if gold.closes}
    waiting = [gold.table for gold in fresh.gold if gold.closes and gold.name in before]
    return [TableChange(", ".join(waiting) or "all", "changed", why)]


def _contract_changes(base: Dataset, fresh: Dataset) -> list[TableChange]:
    found = contract_changes(base.contract, fresh.contract)
    if not found:
        return [TableChange("silver and rejected", "changed", "contract.yaml changed, its rules did not")]
    return [TableChange("silver and rejected", "changed", f"contract, {c.kind}: {c.part} {c.why}") for c in found]


def gold_changes(base: Sequence[Gold], fresh: Sequence[Gold]) -> list[TableChange]:
    """Return what differs between the gold tables of two releases."""
    before, after = {gold.name: gold for gold in base}, {gold.name: gold for gold in fresh}
    found = [TableChange(full_name(name), "removed", "declared no longer") for name in before if name not in after]
    found += [TableChange(full_name(name), "additive", "declared anew") for name in after if name not in before]
    for name in [name for name in after if name in before and before[name] != after[name]]:
        found.append(TableChange(full_name(name), *_gold_change(before[name], after[name])))
    return found


def _gold_change(before: Gold, after: Gold) -> tuple[str, str]:
    if type(before) is not type(after):
        return "incompatible", "another kind of table"
    if not set(before.declared_columns) <= set(after.declared_columns):
        gone = ", ".join(sorted(set(before.declared_columns) - set(after.declared_columns)))
        return "incompatible", f"without {gone}"
    added = sorted(set(after.declared_columns) - set(before.declared_columns))
    if (other := _other_rules(before, after)) and not added:
        return "changed", other
    return "changed", f"{'with ' + ', '.join(added) if added else 'computed differently'}"


def _other_rules(before: Gold, after: Gold) -> str:
    """Return from when on the same time zone has other rules."""
    windows = before.window, after.window
    if windows[0] is None or windows[1] is None or windows[0].time_zone.name != windows[1].time_zone.name:
        return ""
    since = difference_since(windows[0].time_zone, windows[1].time_zone)
    return f"time zone {windows[1].time_zone} has other rules from {since} on" if since else ""


def _modules(base: Dataset, fresh: Dataset) -> list[str]:
    found = {p.relative_to(d.folder).as_posix() for d in (base, fresh) for p in d.folder.rglob("*.py")}
    return sorted(name for name in found if "__pycache__" not in name)


def _differs(base: Dataset, fresh: Dataset, names: Sequence[str]) -> bool:
    return any(_hash(base.folder / name) != _hash(fresh.folder / name) for name in names)


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def folder_changes(settings: Settings, name: str, release: str) -> list[TableChange]:
    """Return how the dataset's folder differs from a release; a folder that cannot be read is one change."""
    try:
        return release_changes(released_dataset(settings, name, release), declared_dataset(settings, name))
    except HeadraceError as error:
        return [TableChange("all", "incompatible", error.what)]
