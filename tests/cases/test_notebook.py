"""docs/python-api.ipynb, cell by cell over a published stream of flights, as a notebook executes it."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from small_events import departed, flight_event
from small_release import small_release

from include.ground.settings import Settings, load_settings

NOTEBOOK = Path(__file__).parents[2] / "docs" / "python-api.ipynb"


def executed(path: Path) -> tuple[dict[str, Any], list[Any]]:
    """Execute the code cells of a notebook in one namespace; return it, and the value of each cell's last line."""
    names: dict[str, Any] = {}
    shown = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        *statements, last = ast.parse("".join(cell["source"])).body
        exec(compile(ast.Module(statements, []), path.name, "exec"), names)
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), path.name, "eval"), names))
        else:
            exec(compile(ast.Module([last], []), path.name, "exec"), names)
    return names, shown


def test_notebook_shows_what_is_published(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = small_release(spark, Settings(state=tmp_path / "state"), "flights")
    made.take([departed(1, 20), departed(2, 5, carrier="AA"), departed(1, 20), flight_event("scheduled", 3)])
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    load_settings.cache_clear()
    names, (by_carrier, rows, worst, change, status, plans) = executed(NOTEBOOK)
    assert by_carrier.rows() == [("AA", 1, 0), ("UA", 1, 1)]
    assert rows == (3, 1)
    assert worst.rows() == [("UA", 20), ("AA", 5)]
    assert change == (0, 1, 0)
    assert names["token"]
    assert status["flights"]["bronze"] is None
    assert plans == []


@pytest.fixture(autouse=True)
def _settings_read_again() -> Iterator[None]:
    """The notebook reads the settings of its process, once; other tests do not get them."""
    yield
    load_settings.cache_clear()
