"""Flights with fewer gold tables, for tests of what does not depend on them: each one costs half a second a run."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from pyspark.sql import SparkSession
from small_release import Record, SmallRelease, small_release

from include.ground.settings import CLONE, Settings

FLIGHTS = CLONE / "include" / "datasets" / "flights"
FOLDERS = TemporaryDirectory(prefix="flights with fewer tables ")


@cache
def flights_with_gold(*names: str) -> Path:
    """Return a copy of the folder of flights with only these gold tables, and without cases; tests do not change it."""
    folder = Path(FOLDERS.name, "-".join(names), "flights")
    shutil.copytree(FLIGHTS, folder, ignore=shutil.ignore_patterns("__pycache__", "cases"))
    pipeline, contract = folder / "pipeline.yaml", folder / "contract.yaml"
    declared = yaml.safe_load(pipeline.read_text("utf-8"))
    declared["gold"] = {name: declared["gold"][name] for name in names}
    pipeline.write_text(yaml.safe_dump(declared, sort_keys=False), "utf-8")
    if "route_days" not in names:
        # The only gold table with rules; the rest of the text stays as it is, for tests that edit it.
        contract.write_text(contract.read_text("utf-8").partition("  - name: route_days\n")[0], "utf-8")
    return folder


def small_flights(spark: SparkSession, settings: Settings, batches: Sequence[Sequence[Record]] = ()) -> SmallRelease:
    """Return a new release of flights with one gold table, `carrier_hours`, that has refined the batches."""
    release = small_release(spark, settings, "flights", flights_with_gold("carrier_hours"))
    for records in batches:
        release.take(records)
    return release
