"""The two sides of a comparison: what readers saw and what was built, or a slice before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from include.catalog.dataset import released_dataset
from include.places import correction_path
from include.planning.compare import Side, rows_in
from include.planning.plan import Plan, PlanRecord, Stage
from include.reading.publication import publication_from_json, tables_of
from include.reading.tables import open_dataset
from include.settings import Settings

LAYERS = ("bronze", "silver", "rejected", "gold")


def both_sides(settings: Settings, record: PlanRecord) -> tuple[Side, Side]:
    """Return what a built plan is about, as it was and as it would be, at one bronze batch."""
    plan, facts = record.plan, record.facts_of(Stage.BUILT)
    return _releases(settings, plan, facts) if plan.slice is None else _slices(settings, plan)


def _releases(settings: Settings, plan: Plan, facts: Mapping[str, Any]) -> tuple[Side, Side]:
    """What readers saw, and what was built, at one batch."""

    def side(said: Mapping[str, Any]) -> Side:
        seen = publication_from_json(said)
        rows = {name: open_dataset(table) for name, table in tables_of(settings, seen).items()}
        return released_dataset(settings, plan.dataset, seen.release), rows

    return side(facts["seen"]), side(facts["built"])


def _slices(settings: Settings, plan: Plan) -> tuple[Side, Side]:
    """The rows of a slice as they were and as they came out."""
    dataset = released_dataset(settings, plan.dataset, plan.release)
    folder = correction_path(settings, plan.dataset, plan.release, plan.id)
    names = sorted((path.name for path in (folder / "after").iterdir()), key=_layer)

    def side(state: str) -> Side:
        return dataset, {name: rows_in(folder / state / name) for name in names}

    return side("before"), side("after")


def _layer(table: str) -> tuple[int, str]:
    return LAYERS.index(table.partition(".")[0]), table
