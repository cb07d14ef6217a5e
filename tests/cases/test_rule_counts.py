"""Counts of warning rules in commits, ledger and report; rejected records do not count as warnings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from fewer_gold_tables import flights_with_gold
from pyspark.sql import SparkSession
from slice_patcher import edited_dataset
from small_events import departed, escaped, flight_event
from small_release import Record, small_release

from include.change.quality import quality_report, report_page
from include.declare.contract_file import load_contract
from include.ground.settings import Settings
from include.observe.ledger_reader import RecordedRun, RuleWarnings, open_reader
from include.observe.ledger_writer import open_writer, project_dataset


def warn_twice(folder: Path) -> None:
    path = folder / "contract.yaml"
    contract = yaml.safe_load(path.read_text("utf-8"))
    departure = {"type": "comparison", "column": {"name": "kind"}, "operator": "==", "parameter": "departed"}
    rules: list[tuple[str, dict[str, Any]]] = [
        ("short", {"column": "distance", "min_value": 1000, "mostly": 0.5}),
        ("late", {"column": "departure_delay", "max_value": 10, "row_condition": departure}),
    ]
    contract["schema"][0]["quality"] = [
        {
            "type": "custom",
            "engine": "greatExpectations",
            "name": name,
            "customProperties": [{"property": "action", "value": "warn"}],
            "implementation": {"type": "expect_column_values_to_be_between", "kwargs": kwargs},
        }
        for name, kwargs in rules
    ]
    path.write_text(yaml.safe_dump(contract, sort_keys=False), "utf-8")


# The second record is not in plain form: counts include records of both passes.
BATCHES = [
    [departed(1, 5), escaped(departed(2, 20, distance=900)), Record(b"broken"), departed(3, 30, distance=0)],
    [flight_event("scheduled", 4, distance=100), departed(5, 11, partition=1)],
]


@pytest.fixture(scope="module")
def runs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[RecordedRun]:
    folder = tmp_path_factory.mktemp("counts")
    settings = Settings(state=folder / "state")
    release = small_release(
        spark, settings, "flights", edited_dataset(folder, warn_twice, flights_with_gold("carrier_hours"))
    )
    for records in BATCHES:
        release.take(records)
    project_dataset(open_writer(settings), settings, "flights")
    return open_reader(settings).run_counts("flights", release.dataset.release)


def test_each_run_counts_reasons_and_warnings(runs: list[RecordedRun]) -> None:
    assert [run.rows_in for run in runs] == [4, 2]
    # Two of four records are rejected: they do not count as warnings.
    assert [run.reasons for run in runs] == [{"malformed": 1, "range": 1}, {}]
    assert runs[0].warnings == {"short": RuleWarnings(2, 1, (0, 101)), "late": RuleWarnings(2, 1, (0, 101))}
    assert runs[1].warnings == {"short": RuleWarnings(2, 1, (0, 104)), "late": RuleWarnings(1, 1, (1, 5000))}


def test_report_marks_rules_over_their_threshold(runs: list[RecordedRun], tmp_path: Path) -> None:
    contract = load_contract(edited_dataset(tmp_path, warn_twice, flights_with_gold("carrier_hours")))
    found = quality_report("flights", contract, runs, None, None)
    lines = {line.rule: line for line in found.lines}
    assert (lines["short"].validated, lines["short"].violations, lines["short"].passed) == (4, 2, True)
    assert (lines["late"].validated, lines["late"].violations, lines["late"].passed) == (3, 2, False)
    assert (lines["range"].validated, lines["range"].violations, lines["range"].passed) == (6, 1, None)
    assert lines["late"].first == (0, 101)
    assert lines["late"].shares == [0.5, 1.0]
    assert found.to_json()["records"] == 6
    made = report_page(found)
    assert made.count("<svg") == len(found.lines)
    assert "partition 0, offset 101" in made
    assert "<script" not in made
