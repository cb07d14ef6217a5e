"""The schema of the chart's values: written by hand, but for the settings, which are those of the code.

`make reference` writes them into `values.schema.json`, and a test compares them, so that Helm refuses a setting that
does not exist, or a value of another form, before anything is installed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from include.ground.settings import CLONE, PREFIX, Settings

SCHEMA = CLONE / "infra" / "kubernetes" / "headrace" / "values.schema.json"
DECIDED = {
    *("state", "datasets", "files", "jars", "runner", "backend", "spark_master", "spark_conf"),
    *("console", "console_passwords", "metrics", "kafka_port"),
    *("airflow_port", "airflow_database", "airflow_url", "api_url"),
}
"""Settings that the chart sets itself, by other values or because a pod allows one value only, or of an Airflow that
it does not have."""
TEXTS: Mapping[str, Mapping[str, Any]] = {
    "integer": {"pattern": r"^\d+$"},
    "number": {"pattern": r"^\d+(\.\d+)?$"},
    "boolean": {"enum": ["true", "false"]},
}
"""How the text of a variable is restricted, by the type of its setting."""


def values_schema() -> str:
    """Return the schema's file with the settings of the code."""
    schema = json.loads(SCHEMA.read_text("utf-8"))
    fields = {name: each for name, each in Settings.model_json_schema()["properties"].items() if name not in DECIDED}
    files = {name for name in fields if name.endswith("_file")}
    schema["$defs"]["settings"]["properties"] = {
        variable(name): text(each) for name, each in sorted(fields.items()) if name not in files
    }
    schema["$defs"]["secretFiles"]["properties"] = {
        variable(name): {"$ref": "#/$defs/key", "description": fields[name]["description"]} for name in sorted(files)
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def variable(setting: str) -> str:
    """Return the variable of a setting."""
    return f"{PREFIX}{setting.upper()}"


def text(field: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a setting's text."""
    restricted = {key: field[key] for key in ("pattern", "enum") if key in field}
    form = restricted or TEXTS.get(field.get("type", ""), {})
    return {"type": "string", "description": field["description"], **form}


def generated_schema() -> dict[Path, str]:
    """Return the text of the generated file by its path."""
    return {SCHEMA: values_schema()}
