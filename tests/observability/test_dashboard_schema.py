"""The dashboard by Grafana's published types, checked by their compiler; no Grafana server is needed."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from include.ground.settings import CLONE

DASHBOARD = CLONE / "infra" / "observability" / "headrace_dashboard.json"
SCHEMA = Path(__file__).parent / "grafana_schema"
CHECK_ONLY = ("--noEmit", "--strict", "--skipLibCheck")
MODULES = ("--moduleResolution", "bundler", "--module", "esnext", "--target", "es2022")
pytestmark = pytest.mark.extended
Dashboard = dict[str, Any]


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the locked packages."""
    assert shutil.which("npm"), "npm is not on PATH: apt-get install npm"
    folder = Path(shutil.copytree(SCHEMA, tmp_path_factory.mktemp("grafana") / "schema"))
    install = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


def problems(schema: Path, dashboard: Dashboard) -> str:
    """Return what the compiler finds wrong with a dashboard."""
    text = json.dumps(dashboard, indent=1)
    imported = 'import type { CheckedDashboard } from "./checked_dashboard";'
    (schema / "dashboard.ts").write_text(f"{imported}\nexport const dashboard: CheckedDashboard = {text};\n")
    command = [str(schema / "node_modules" / ".bin" / "tsc"), *CHECK_ONLY, *MODULES, "dashboard.ts"]
    done = subprocess.run(command, cwd=schema, capture_output=True, text=True, check=False, timeout=300)
    assert bool(done.stdout) == bool(done.returncode), done.stderr
    return done.stdout


def test_dashboard_is_one_by_the_published_types(schema: Path) -> None:
    assert problems(schema, json.loads(DASHBOARD.read_text())) == ""


def unknown_key(dashboard: Dashboard) -> None:
    dashboard["panels"][0]["titel"] = "Rows"


def wrong_placement(dashboard: Dashboard) -> None:
    dashboard["panels"][3]["options"]["legend"]["placement"] = "below"


def missing_tooltip(dashboard: Dashboard) -> None:
    del dashboard["panels"][0]["options"]["tooltip"]


def number_for_a_text(dashboard: Dashboard) -> None:
    dashboard["title"] = 7


def unknown_variable_type(dashboard: Dashboard) -> None:
    dashboard["templating"]["list"][0]["type"] = "data source"


def query_without_an_expression(dashboard: Dashboard) -> None:
    del dashboard["panels"][1]["targets"][0]["expr"]


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        (unknown_key, "'\"titel\"' does not exist"),
        (wrong_placement, '"below"'),
        (missing_tooltip, "'tooltip' is missing"),
        (number_for_a_text, "'number' is not assignable"),
        (unknown_variable_type, '"data source"'),
        (query_without_an_expression, "'expr' is missing"),
    ],
)
def test_broken_dashboard_is_found(schema: Path, broken: Callable[[Dashboard], None], named: str) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    broken(dashboard)
    assert named in problems(schema, dashboard)
