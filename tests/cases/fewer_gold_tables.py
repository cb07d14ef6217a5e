"""Flights with fewer gold tables, for tests of what does not depend on them: each one costs half a second a run."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from include.settings import CLONE

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
