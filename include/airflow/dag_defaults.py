"""Inputs of the DAG files: the dataset folders, their tables as assets, and the defaults of all DAGs.

Reads: the datasets' YAML, nothing else: Airflow imports every DAG file every few seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from airflow.sdk import Asset

from include.airflow.run_context import log_failure
from include.declare.analyses import analysis_files
from include.declare.dataset import dataset_names
from include.declare.derived_dataset import derived_names, load_derived, origin_datasets
from include.declare.pipeline import load_pipeline
from include.declare.windows import Window, day_range
from include.ground.errors import HeadraceError
from include.ground.settings import load_settings

log = logging.getLogger(__name__)
PLANS = "plans."

DEFAULTS: dict[str, Any] = {
    "owner": "headrace",
    "retries": 2,
    "retry_delay": timedelta(seconds=20),
    "on_failure_callback": log_failure,
}
"""Two retries for Transient errors; a Terminal one fails the task at once."""


@dataclass(frozen=True)
class DeclaredFolder:
    """A folder that has a stream: its name, and its published tables as assets.

    `plans`: has an event when a plan was applied or rolled back, also for a partition, whose events of the tables reach
    only DAGs with partitions. `complete_after`: after how many days a day of events is complete.
    """

    name: str
    tables: tuple[Asset, ...]
    plans: Asset
    complete_after: int


@dataclass(frozen=True)
class DeclaredDataset(DeclaredFolder):
    """A folder with a topic: also its bronze."""

    bronze: Asset


def declared_folders() -> list[DeclaredFolder]:
    """Return every folder that has a stream: those with a topic, then the derived ones."""
    return [*declared_datasets(), *declared_derived()]


def declared_datasets() -> list[DeclaredDataset]:
    """Return every folder with a topic; one with an invalid pipeline has no gold, and its first task fails."""
    return [_declared(name) for name in dataset_names(load_settings())]


def declared_derived() -> list[DeclaredFolder]:
    """Return every derived dataset; one with an invalid declaration has no tables, and its first task fails.

    A day is complete when it is in all its source datasets.
    """
    return [_derived(name) for name in derived_names(load_settings())]


def _derived(name: str) -> DeclaredFolder:
    settings, tables, days = load_settings(), tuple[Asset, ...](), 1
    try:
        derived = load_derived(name, settings.datasets / name, strict=False)
        tables = tuple(asset(name, f"gold.{table.name}") for table in derived.pipeline.gold)
        days = max((_declared(origin).complete_after for origin in origin_datasets(settings, name)), default=1)
    except HeadraceError as error:
        log.warning("%s", error.what)
    return DeclaredFolder(name, tables, plans_asset(name), days)


def _declared(name: str) -> DeclaredDataset:
    gold: list[str] = []
    days = 1
    try:
        pipeline = load_pipeline(load_settings().datasets / name)
    except HeadraceError as error:
        log.warning("%s", error.what)
    else:
        gold = [table.name for table in pipeline.gold]
        days = 1 + -(-(pipeline.lateness + _behind_utc(pipeline.windows)) // timedelta(days=1))
    tables = (f"silver.{name}", f"rejected.{name}", *(f"gold.{table}" for table in gold))
    assets = tuple(asset(name, table) for table in tables)
    return DeclaredDataset(name, assets, plans_asset(name), days, asset(name, f"bronze.{name}"))


def _behind_utc(windows: Sequence[Window]) -> timedelta:
    """Return how long after midnight (UTC) a day still lasts in the calendars of windows, in winter and in summer."""
    midnights = [datetime(2026, month, 2, tzinfo=UTC) for month in (1, 7)]
    ends = [day_range(windows, date(2026, month, 1))[1] for month in (1, 7)]
    return max(timedelta(), *(end - midnight for end, midnight in zip(ends, midnights, strict=True)))


def declared_analysis_names(dataset: str) -> list[str]:
    """Return the names of a dataset's analyses; a wrong file fails its own task."""
    return [path.stem for path in analysis_files(load_settings().datasets / dataset)]


def plans_asset(dataset: str) -> Asset:
    """Return the asset of the plans that change a dataset's tables."""
    return asset(dataset, f"{PLANS}{dataset}")


def asset(dataset: str, table: str) -> Asset:
    """Return a table as an asset: named as in SQL, grouped by dataset."""
    return Asset(name=table, uri=f"headrace://{dataset}/{table.replace('.', '/')}", group=dataset)
