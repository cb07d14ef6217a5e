"""A spell: the reports of a device between two changes of its state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def spells(reports: Any) -> Iterator[dict[str, Any]]:
    """Yield the spells of a device, whose reports are in order; the last one has no end."""
    spell: dict[str, Any] | None = None
    for report in reports.to_pylist():
        if spell is None or report["state"] != spell["state"]:
            if spell is not None:
                yield {**spell, "until": report["at"]}
            spell = {"state": report["state"], "since": report["at"], "reports": 0}
        spell["reports"] += 1
    if spell is not None:
        yield spell
