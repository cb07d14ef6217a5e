"""A release with a wrong rule, and its plan."""

from __future__ import annotations

import json
from typing import Any

from recovery_site import Site

NEEDED, REFUSED = 1, 2
"""Exit codes: an approval is needed, the plan failed."""


def ship_doubled_litres(site: Site) -> None:
    """Change the dataset's folder so that every litre counts twice, in silver and so in all gold."""
    path = site.settings.datasets / site.dataset / "silver.py"
    text = path.read_text("utf-8")
    assert "return accepted" in text
    path.write_text(text.replace("return accepted", 'return accepted.withColumn("litres", accepted.litres * 2)'))


def only_plan(site: Site) -> dict[str, Any]:
    (found,) = [
        plan for plan in json.loads(site.command("plan", "list", "--json").stdout) if plan["dataset"] == site.dataset
    ]
    assert isinstance(found, dict)
    return found
