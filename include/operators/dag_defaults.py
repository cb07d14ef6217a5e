"""Inputs of the DAG files: the dataset folders, their tables as assets, and the defaults of all DAGs.

Reads: the datasets' YAML, nothing else: Airflow imports every DAG file every few seconds.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow.sdk import Asset

from include.catalog.analyses import analysis_files
from include.catalog.dataset import dataset_names
from include.catalog.pipeline import load_pipeline
from include.errors import HeadraceError
from include.operators.run_context import log_failure
from include.settings import load_settings

log = logging.getLogger(__name__)

DEFAULTS: dict[str, Any] = {
    "owner": "headrace",
    "retries": 2,
    "retry_delay": timedelta(seconds=20),
    "on_failure_callback": log_failure,
}
"""Two retries for Transient errors; a Terminal one fails the task at once."""


@dataclass(frozen=True)
class DeclaredDataset:
    """A dataset folder: its name, its tables as assets, and after how many days a day of events is complete."""

    name: str
    bronze: Asset
    tables: tuple[Asset, ...]
    complete_after: int


def declared_datasets() -> list[DeclaredDataset]:
    """Return every dataset folder; one with an invalid pipeline has no gold, and its first task fails."""
    return [_declared(name) for name in dataset_names(load_settings())]


def _declared(name: str) -> DeclaredDataset:
    gold: list[str] = []
    days = 1
    try:
        pipeline = load_pipeline(load_settings().datasets / name)
    except HeadraceError as error:
        log.warning("%s", error.what)
    else:
        gold = [table.name for table in pipeline.gold]
        days = 1 + -(-pipeline.lateness // timedelta(days=1))
    tables = (f"silver.{name}", f"rejected.{name}", *(f"gold.{table}" for table in gold))
    return DeclaredDataset(name, asset(name, f"bronze.{name}"), tuple(asset(name, table) for table in tables), days)


def declared_analysis_names(dataset: str) -> list[str]:
    """Return the names of a dataset's analyses; a wrong file fails its own task."""
    return [path.stem for path in analysis_files(load_settings().datasets / dataset)]


def asset(dataset: str, table: str) -> Asset:
    """Return a table as an asset: named as in SQL, grouped by dataset."""
    return Asset(name=table, uri=f"headrace://{dataset}/{table.replace('.', '/')}", group=dataset)
