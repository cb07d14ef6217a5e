"""Measures the cost of 20 row rules: refines one batch without and with them, in turn, in one process.

Ten rules reject and ten only warn, to include both costs: verdicts in validation, counts while writing files.
Every refine is of a new release with new tables; bronze is the same. Prints the ratio of the medians.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from deliveries import days_of, deliveries
from small_release import SmallRelease, small_release

from include.declare.dataset import load_dataset
from include.ground.settings import CLONE, Settings
from include.producers.faults import Shares
from spark_jobs.backends.release import open_release
from spark_jobs.backends.spark_session import open_session
from spark_jobs.stream.refine import refine

FLIGHTS = CLONE / "include" / "datasets" / "flights"
DAYS = [f"2013-01-{day:02}" for day in range(1, 32)]
TARGET = 1.15
ROUNDS = 5


def kinds_of_rule() -> list[tuple[str, dict[str, Any]]]:
    """Ten rules that valid events satisfy, over all types and with conditions."""
    departed = {"type": "comparison", "column": {"name": "kind"}, "operator": "==", "parameter": "departed"}
    return [
        ("expect_column_values_to_not_be_null", {"column": "departure_delay", "row_condition": departed}),
        ("expect_column_values_to_be_null", {"column": "air_time", "row_condition": departed}),
        ("expect_column_values_to_be_between", {"column": "distance", "min_value": 10, "max_value": 9000}),
        ("expect_column_values_to_be_between", {"column": "occurred_at", "min_value": "2012-01-01T00:00:00Z"}),
        ("expect_column_values_to_be_in_set", {"column": "origin", "value_set": ["EWR", "JFK", "LGA"]}),
        ("expect_column_values_to_not_be_in_set", {"column": "dest", "value_set": ["XXX", "YYY"]}),
        ("expect_column_values_to_match_regex", {"column": "dest", "regex": "^[A-Z]{3}$"}),
        ("expect_column_value_lengths_to_be_between", {"column": "tailnum", "min_value": 2, "max_value": 10}),
        ("expect_column_value_lengths_to_equal", {"column": "carrier", "value": 2}),
        (
            "expect_column_pair_values_to_be_equal",
            {"column_A": "flight", "column_B": "distance", "row_condition": {**departed, "parameter": "nothing"}},
        ),
    ]


def rules() -> list[dict[str, Any]]:
    return [
        {
            "type": "custom",
            "engine": "greatExpectations",
            "name": f"{action}_{number}",
            "customProperties": [{"property": "action", "value": action}],
            "implementation": {"type": expectation, "kwargs": kwargs},
        }
        for action in ("reject", "warn")
        for number, (expectation, kwargs) in enumerate(kinds_of_rule())
    ]


def folder_with(place: Path, found: list[dict[str, Any]], number: int) -> Path:
    """Return a folder of flights with exactly these rules; `number` makes it a distinct release."""
    folder = place / f"flights {len(found)} {number}"
    shutil.copytree(FLIGHTS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "contract.yaml"
    contract = yaml.safe_load(path.read_text("utf-8"))
    contract["schema"] = [contract["schema"][0] | {"quality": found}]
    path.write_text(f"# {number}\n{yaml.safe_dump(contract, sort_keys=False)}", "utf-8")
    return folder


def seconds_of(made: SmallRelease, folder: Path) -> float:
    dataset = load_dataset("flights", folder)
    release = open_release(made.spark, made.settings, dataset, made.bronze)
    began = time.monotonic()
    report = refine(made.settings, release, 0, 0, 1, publishing=False)
    assert report.rows > 10_000
    return time.monotonic() - began


def main() -> int:
    """Print the ratio; return 0 when it is within the target."""
    with tempfile.TemporaryDirectory(prefix="headrace rules ") as name:
        place = Path(name)
        settings = Settings(state=place / "state", driver_memory="2g")
        made = small_release(open_session(settings, "rule cost"), settings, "flights")
        made.ingest([item.record for item in deliveries("flights", days_of(*DAYS), Shares(), 7)])
        taken: dict[int, list[float]] = {0: [], 20: []}
        for number in range(ROUNDS + 1):
            for count, found in ((0, []), (20, rules())):
                seconds = seconds_of(made, folder_with(place, found, number))
                if number:
                    taken[count].append(seconds)
                print(
                    f"round {number}: {count:2} rules {seconds:6.2f} s{'' if number else '  (warming up)'}", flush=True
                )
    ratio = median(taken[20]) / median(taken[0])
    print(f"{ROUNDS} rounds: {median(taken[0]):.2f} s without, {median(taken[20]):.2f} s with 20 row rules")
    print(f"ratio {ratio:.3f} (target {TARGET} or less)")
    return 0 if ratio <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
