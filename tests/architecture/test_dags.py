"""Every DAG: importable in a moment and alone, named after its file, with owner, tags, doc and retries."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from source_tree import ROOT

from include.declare.dataset import dataset_names
from include.declare.derived_dataset import all_dataset_names
from include.ground.settings import Settings
from include.serve.forms import declarations

MOST_SECONDS = 2.0
HEAVY = ("include", "pyspark", "great_expectations", "pyarrow", "polars", "duckdb", "deltalake", "confluent_kafka")
FILES = sorted(path.stem for path in (ROOT / "dags").glob("*.py"))
# Without a dataset of their own.
PLATFORM = {"analysis", "audit", "maintain"}
# Recompute records, which a derived dataset does not have.
OF_RECORDS = {"replay", "load"}
LOOK = """
import json, sys, time
import airflow.sdk
from airflow.dag_processing.dagbag import DagBag
loaded = set(sys.modules)
began = time.process_time()
bag = DagBag(sys.argv[1])
seconds = time.process_time() - began
def facts_of(dag):
    facts = {"file": dag.fileloc, "doc": dag.doc_md or "", "tags": sorted(dag.tags), "catchup": dag.catchup}
    params = {name: dag.params.get_param(name) for name in dag.params}
    facts["params"] = {name: {"schema": each.schema, "description": each.description} for name, each in params.items()}
    facts["continuous"] = type(dag.timetable).__name__ == "ContinuousTimetable"
    facts["started"] = dag.start_date is not None
    facts["tasks"] = {task.task_id: {
        "owner": task.owner, "retries": task.retries, "type": task.task_type,
        "callback": bool(task.on_failure_callback), "templates": list(task.template_fields),
        "outlets": [asset.name for asset in task.outlets], "downstream": sorted(task.downstream_task_ids),
    } for task in dag.tasks}
    return facts
heavy = sorted({name.split(".")[0] for name in set(sys.modules) - loaded} & set(sys.argv[2:]))
errors = {path: str(error) for path, error in bag.import_errors.items()}
dags = {name: facts_of(dag) for name, dag in bag.dags.items()}
print("\\n" + json.dumps({"seconds": seconds, "heavy": heavy, "errors": errors, "dags": dags}))
"""


@lru_cache(maxsize=1)
def imported_dags(home: Path) -> dict[str, Any]:
    """Import all DAG files as Airflow does, in a process that has nothing else, with the answer of the API."""
    environ = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONPATH": str(ROOT / "airflow_package"),
    }
    kept = home / "headrace" / "headrace_default.json"
    kept.parent.mkdir()
    kept.write_text(json.dumps(declarations(Settings())))
    os.utime(kept, (time.time() + 600, time.time() + 600))
    argv = [sys.executable, "-c", LOOK, str(ROOT / "dags"), *HEAVY]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=120, check=False, cwd=home)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return imported_dags(tmp_path_factory.mktemp("airflow home"))


def tasks(bag: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(f"{dag}.{name}", task) for dag, facts in bag["dags"].items() for name, task in facts["tasks"].items()]


def test_dags_are_imported_quickly_and_without_heavy_packages(bag: dict[str, Any]) -> None:
    assert bag["errors"] == {}
    assert bag["heavy"] == [], "a DAG file is imported again and again: import these where a task runs"
    assert bag["seconds"] <= MOST_SECONDS


def test_dag_ids_are_file_names_and_datasets(bag: dict[str, Any]) -> None:
    wanted = {name for name in FILES if name in PLATFORM}
    for name in set(FILES) - PLATFORM:
        datasets = dataset_names if name in OF_RECORDS else all_dataset_names
        wanted |= {f"{name}__{dataset}" for dataset in datasets(Settings())}
    assert set(bag["dags"]) == wanted
    for dag, facts in bag["dags"].items():
        assert Path(facts["file"]).stem == dag.partition("__")[0]


def test_each_dag_has_a_complete_description_and_tags(bag: dict[str, Any]) -> None:
    for dag, facts in bag["dags"].items():
        for word in ("**Reads**", "**Writes**", "**Guarantee**", "**After a crash**", "**Does not**"):
            assert word in facts["doc"], f"{dag}: its docstring does not say: {word}"
        assert facts["tags"], f"{dag} has no tag"
        dataset = dag.partition("__")[2]
        assert not dataset or dataset in facts["tags"], f"{dag} is not tagged with its dataset"
        assert facts["catchup"] is False, f"{dag} would do the past at once when it is unpaused"


def test_continuous_dag_has_a_start_date(bag: dict[str, Any]) -> None:
    found = {dag: facts["started"] for dag, facts in bag["dags"].items() if facts["continuous"]}
    assert found
    assert all(found.values())


def test_each_task_has_an_owner_a_callback_and_retries(bag: dict[str, Any]) -> None:
    for name, task in tasks(bag):
        assert task["owner"] == "headrace", name
        assert task["callback"], f"{name}: its failure is not reported"
        assert task["retries"] >= 1, f"{name} has no retries"


def test_values_of_a_run_are_never_rendered_as_templates(bag: dict[str, Any]) -> None:
    """Only the question's own two texts are templates, and both are ours."""
    rendered = {name: task["templates"] for name, task in tasks(bag) if task["templates"]}
    assert {task_type(bag, name) for name in rendered} <= {"ApprovePlan"}
    assert all(templates == ["subject", "body"] for templates in rendered.values())


def task_type(bag: dict[str, Any], name: str) -> str:
    dag, _, task = name.partition(".")
    return str(bag["dags"][dag]["tasks"][task]["type"])


def test_params_have_types_titles_and_descriptions(bag: dict[str, Any]) -> None:
    for dag, facts in bag["dags"].items():
        for name, param in facts["params"].items():
            assert {"type", "title"} <= set(param["schema"]), f"{dag}: param {name} has no type or title"
            assert param["description"], f"{dag}: param {name} has no description"


def test_assets_are_the_tables_changed_by_a_plan(bag: dict[str, Any]) -> None:
    apply = bag["dags"]["replay__flights"]["tasks"]["apply"]
    assert {"bronze.flights", "silver.flights", "rejected.flights", "gold.carrier_hours"} <= set(apply["outlets"])
    assert "bronze.flights" not in bag["dags"]["backfill__flights"]["tasks"]["apply"]["outlets"]


def test_a_derived_dataset_is_requested_released_backfilled_and_maintained_like_a_stream(bag: dict[str, Any]) -> None:
    assert bag["dags"]["stream__weather_delays"]["tasks"]["keep"]["type"] == "RunStream"
    release = bag["dags"]["release__weather_delays"]["tasks"]
    assert [*release] == [*bag["dags"]["release__flights"]["tasks"]]
    assert release["approve"]["type"] == "ApprovePlan"
    assert release["apply"]["outlets"] == ["gold.weather_delays", "plans.weather_delays"]
    backfill = bag["dags"]["backfill__weather_delays"]["tasks"]
    assert [*backfill] == [*bag["dags"]["backfill__flights"]["tasks"]]
    assert backfill["apply"]["outlets"] == ["gold.weather_delays", "plans.weather_delays"]
    assert "replay__weather_delays" not in bag["dags"], "it reads no topic"
    assert "tables__weather_delays" in bag["dags"]["maintain"]["tasks"]
    assert "days__weather_delays" not in bag["dags"]["audit"]["tasks"], "it has no watermark"


def test_each_declared_analysis_is_a_task(bag: dict[str, Any]) -> None:
    declared = sorted((ROOT / "include" / "datasets").glob("*/analysis/*.yaml"))
    assert declared
    expected = {f"{path.parents[1].name}__{path.stem}" for path in declared}
    assert set(bag["dags"]["analysis"]["tasks"]) == expected


@pytest.mark.parametrize("name", FILES)
def test_dag_file_has_declarations_only(name: str) -> None:
    """Declarations, a loop over the datasets, and nothing that decides: no function, class, condition or exception."""
    tree = ast.parse((ROOT / "dags" / f"{name}.py").read_text("utf-8"))
    logic = (ast.FunctionDef, ast.ClassDef, ast.If, ast.Try, ast.While, ast.Lambda)
    assert [type(node).__name__ for node in ast.walk(tree) if isinstance(node, logic)] == []
