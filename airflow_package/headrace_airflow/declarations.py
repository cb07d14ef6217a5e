"""Inputs of the DAG files: the datasets of a Headrace, their tables as assets, the forms, and the defaults of all DAGs.

Airflow imports each DAG file every few seconds and before each task: the server's answer is kept in AIRFLOW_HOME, asked
for again after FRESH seconds, and used for as long as the server does not answer.
"""

from __future__ import annotations

import json
import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, Context, Param
from airflow.sdk.exceptions import AirflowException

from headrace_airflow.connection import DEFAULT_CONNECTION, HeadraceConnection, origin

log = logging.getLogger(__name__)
FRESH = 15.0
WITHIN = 10.0
PLANS = "plans."


def report_failure(context: Context) -> None:
    """Report a failed task to the server, whose log shows it without Airflow."""
    task: Any = context["ti"]
    facts = {"task": task.task_id, "attempt": task.try_number, "error": str(context.get("exception") or "")[:2000]}
    # A server that does not answer must not hide the error that the task failed with.
    with suppress(AirflowException):
        HeadraceConnection().request("POST", "failures", {"by": origin(context), **facts})


DEFAULTS: dict[str, Any] = {
    "owner": "headrace",
    "retries": 2,
    "retry_delay": timedelta(seconds=20),
    "on_failure_callback": report_failure,
}
"""Two retries for errors that may pass; another one fails the task at once."""


@dataclass(frozen=True)
class Dataset:
    """A folder that has a stream: its published tables as assets, and `bronze` unless it is derived.

    `plans`: has an event when a plan was applied or rolled back, also for a partition, whose events of the tables reach
    only DAGs with partitions. `complete_after`: after how many days a day of events is complete.
    """

    name: str
    tables: tuple[Asset, ...]
    plans: Asset
    bronze: Asset | None
    complete_after: int
    analyses: tuple[str, ...]

    @property
    def topic_tables(self) -> tuple[Asset, ...]:
        """The tables of a dataset with a topic: bronze, then the published ones."""
        return self.tables if self.bronze is None else (self.bronze, *self.tables)


def datasets() -> list[Dataset]:
    """Return every folder that has a stream: those with a topic, then the derived ones."""
    return [_dataset(**each) for each in declarations()["datasets"]]


def datasets_with_topic() -> list[Dataset]:
    """Return the datasets that have records in Kafka."""
    return [dataset for dataset in datasets() if dataset.bronze is not None]


def _dataset(name: str, tables: list[str], bronze: str | None, complete_after: int, analyses: list[str]) -> Dataset:
    assets = tuple(asset(name, table) for table in tables)
    own = asset(name, bronze) if bronze else None
    return Dataset(name, assets, asset(name, f"{PLANS}{name}"), own, complete_after, tuple(analyses))


def form(kind: str) -> dict[str, Param]:
    """Return the trigger form of a kind of DAG; the server validates the values."""
    return {name: Param(**field) for name, field in declarations()["forms"][kind].items()}


def asset(dataset: str, table: str) -> Asset:
    """Return a table as an asset: named as in SQL, grouped by dataset."""
    return Asset(name=table, uri=f"headrace://{dataset}/{table.replace('.', '/')}", group=dataset)


def declarations(connection: str = DEFAULT_CONNECTION) -> dict[str, Any]:
    """Return what the server declares, at most FRESH seconds old while it answers."""
    kept = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "headrace" / f"{connection}.json"
    if kept.is_file() and time.time() - kept.stat().st_mtime < FRESH:
        return _read(kept)
    try:
        found = HeadraceConnection(connection, WITHIN).request("GET", "declarations")
    except AirflowException as error:
        if not kept.is_file():
            raise
        log.warning("%s; the DAGs are those of its last answer", error)
        os.utime(kept)
        return _read(kept)
    kept.parent.mkdir(parents=True, exist_ok=True)
    complete = kept.with_suffix(f".{os.getpid()}")
    complete.write_text(json.dumps(found), "utf-8")
    complete.replace(kept)
    return found


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text("utf-8")))
