"""Spells: a machine is in a state from the first report of it until the first report of another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def spells(reports: Any) -> Iterator[dict[str, Any]]:
    """Yield the spells of a machine, whose reports are in order."""
    spell: dict[str, Any] | None = None
    for report in reports.to_pylist():
        if report["watts"] > 500:
            raise ValueError(f"{report['watts']} watts are too many")
        if spell is None or report["state"] != spell["state"]:
            if spell is not None:
                yield {**spell, "until": report["at"]}
            spell = {"state": report["state"], "since": report["at"], "peak": report["watts"]}
        spell["peak"] = max(spell["peak"], report["watts"])
    if spell is not None:
        yield spell
