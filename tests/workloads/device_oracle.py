"""What the tables over reports of devices must hold, from the records alone, in plain Python."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from workloads.oracle_rows import Expected, Row

Report = dict[str, Any]
RECENT = timedelta(days=2)


def expected_device_tables(records: Iterable[bytes]) -> Expected:
    """Return the rows of each gold table."""
    devices = defaultdict[str, list[Report]](list)
    for record in records:
        report = json.loads(record)
        devices[report["device"]].append({**report, "at": datetime.fromisoformat(report["at"])})
    for reports in devices.values():
        reports.sort(key=lambda each: (each["at"], each["event_id"]))
    return {
        "device_power": [row for name, reports in devices.items() for row in _power(name, reports)],
        "device_spells": [row for name, reports in devices.items() for row in _spells(name, reports)],
        "device_faults": [row for name, reports in devices.items() for row in _faults(name, reports)],
    }


def _power(device: str, reports: list[Report]) -> list[Row]:
    newest = reports[-10:]
    watts = [each["watts"] for each in newest]
    of_device = {"moving_average": sum(watts) / len(watts), "reports": len(watts)}
    return [
        {"device": device, "place": len(newest) - n, "watts": each["watts"], "at": each["at"], **of_device}
        for n, each in enumerate(newest)
    ]


def _spells(device: str, reports: list[Report]) -> list[Row]:
    recent = [each for each in reports if reports[-1]["at"] - each["at"] < RECENT]
    begins = [n for n, each in enumerate(recent) if n == 0 or recent[n - 1]["state"] != each["state"]]
    rows = list[Row]()
    for begin, end in zip(begins, [*begins[1:], None], strict=True):
        part = recent[begin:end]
        until = None if end is None else recent[end]["at"]
        row = {"state": part[0]["state"], "since": part[0]["at"], "until": until, "reports": len(part)}
        rows.append({"device": device, **row})
    return rows


def _faults(device: str, reports: list[Report]) -> list[Row]:
    faults = [
        (after["at"], before["watts"])
        for before, after in zip(reports, reports[1:], strict=False)
        if after["state"] == "fault" and before["state"] != "fault"
    ]
    return [{"device": device, "failed_at": at, "watts_before": watts} for at, watts in faults]
