"""`headrace doctor`."""

from __future__ import annotations

import json

import typer
from rich.table import Table
from rich.text import Text

from include.cli.exit_codes import FAILED
from include.cli.option_types import AsJson
from include.cli.wide_console import wide_console
from include.observe.doctor import run_checks
from include.observe.machine import CheckResult, Verdict

COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(as_json: AsJson = False) -> None:
    """Check Java, Python, jars, ports, disk, memory, settings; exit code 1 when a check fails."""

    findings = run_checks()
    passed = all(finding.verdict is not Verdict.FAIL for finding in findings)
    if as_json:
        typer.echo(json.dumps({"ok": passed, "checks": [as_record(finding) for finding in findings]}, indent=1))
    else:
        wide_console().print(as_table(findings))
    raise typer.Exit(0 if passed else FAILED)


def as_record(finding: CheckResult) -> dict[str, str]:
    """Return a finding as JSON."""
    return {
        "check": finding.check,
        "verdict": finding.verdict.value,
        "found": finding.found,
        "remedy": finding.remedy,
    }


def as_table(findings: list[CheckResult]) -> Table:
    """Return the findings as a table, without markup."""
    table = Table("check", "", "found", "remedy")
    for finding in findings:
        verdict = finding.verdict.value
        table.add_row(finding.check, Text(verdict, COLOURS[verdict]), Text(finding.found), Text(finding.remedy))
    return table
