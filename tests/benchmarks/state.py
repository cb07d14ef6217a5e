"""A temporary state folder with its own broker and the driver of one dataset.

The folder of a dataset is copied, or made by `headrace new` from the first of its events.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import yaml
from workloads.registry import DATASETS as WORKLOADS

from benchmarks.event_supply import FEEDS, EventSupply
from include.declare.inferred_dataset import inferred_dataset
from include.declare.sample_records import record_sample
from include.declare.scaffold import write_folder
from include.ground.settings import CLONE, Settings, load_settings
from include.run.start_stop import down

SOURCES = {"flights": CLONE / "include" / "datasets" / "flights", "ad_events": WORKLOADS / "ad_events"}
"""The measured datasets that have a folder."""
ONE_GOLD_TABLE = {"ad_events": "campaign_views"}
"""The only gold table that a dataset has here: the one of the Yahoo Streaming Benchmark."""
SAMPLE = 1_000
# Each would make the benchmark write outside its folder, to topics of others, or compute elsewhere.
SHARED = (
    "HEADRACE_LEDGER_URL",
    "HEADRACE_KAFKA_PORT",
    "HEADRACE_KAFKA_BOOTSTRAP",
    "HEADRACE_KAFKA_SECURITY",
    "HEADRACE_OPENLINEAGE_URL",
    "HEADRACE_SPARK_MASTER",
)
OWN = ("HEADRACE_STATE", "HEADRACE_DATASETS", "HEADRACE_CONSOLE")
LogLine = Callable[[str], None]


@contextmanager
def temporary_state(dataset: str, keep: bool) -> Iterator[Settings]:
    """Yield the settings with a new state folder and only this dataset; it is removed afterwards unless `keep`.

    It sets environment variables, because the driver inherits the environment.
    """
    load_settings()
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    before = {name: os.environ.pop(name, None) for name in (*SHARED, *OWN)}
    own = {"HEADRACE_STATE": str(folder / "state"), "HEADRACE_DATASETS": str(copied_dataset(dataset, folder))}
    os.environ |= own | {"HEADRACE_CONSOLE": "off"}
    load_settings.cache_clear()
    try:
        yield load_settings()
    finally:
        for name in OWN:
            os.environ.pop(name)
        os.environ.update({name: value for name, value in before.items() if value is not None})
        load_settings.cache_clear()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def copied_dataset(dataset: str, folder: Path) -> Path:
    """Copy a dataset into `folder/datasets` without its analyses, and return that; some have one gold table only."""
    if dataset not in SOURCES:
        return _inferred_dataset(dataset, folder / "datasets")
    target = folder / "datasets" / dataset
    shutil.copytree(SOURCES[dataset], target, ignore=shutil.ignore_patterns("__pycache__", "analysis"))
    if dataset in ONE_GOLD_TABLE:
        path = target / "pipeline.yaml"
        pipeline = yaml.safe_load(path.read_text("utf-8"))
        pipeline["gold"] = {name: pipeline["gold"][name] for name in (ONE_GOLD_TABLE[dataset],)}
        path.write_text(yaml.safe_dump(pipeline, sort_keys=False), "utf-8")
    return folder / "datasets"


def _inferred_dataset(dataset: str, folder: Path) -> Path:
    """Write what `headrace new` makes of the first events, and return the folder around it."""
    folder.mkdir()
    events = pl.concat(EventSupply(dataset).frames(SAMPLE))["value"]
    records = record_sample(FEEDS[dataset].source, events)
    found = inferred_dataset(dataset, FEEDS[dataset].topic, records, datetime.now(UTC))
    write_folder(Settings(datasets=folder), found, records)
    return folder


@contextmanager
def stopped_afterwards(settings: Settings, log: LogLine) -> Iterator[None]:
    """Always stop broker and driver at the end."""
    try:
        yield
    finally:
        down(settings, log)
