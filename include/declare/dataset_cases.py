"""The cases of a dataset: `cases/NAME.jsonl` has records, `cases/NAME.expected.json` the expected results.

`rejected` names the reasons of each rejected line; `gold`, if given, the rows of each table. `headrace try` runs them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from include.ground.errors import Terminal

CASES = "cases"


class CaseUnreadable(Terminal):
    """The expectation of a case cannot be read; `path` is its file."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}", "headrace try DATASET --accept   (stores the current results as expected)")
        self.path = path


class ExpectedCase(BaseModel):
    """The expected results of a case: reasons by line, rows by gold table."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    rejected: dict[str, list[str]] = {}
    gold: dict[str, list[dict[str, Any]]] | None = None

    def differences(self, rejected: Mapping[str, Sequence[str]], gold: Mapping[str, Sequence[Any]]) -> list[str]:
        """Return the differences from the expected results, one sentence each."""
        lines = sorted({*self.rejected, *rejected}, key=lambda line: (len(line), line))
        found = [
            f"line {line}: expected {_verdict(self.rejected.get(line))}, is {_verdict(rejected.get(line))}"
            for line in lines
            if sorted(self.rejected.get(line, ())) != sorted(rejected.get(line, ()))
        ]
        for table, rows in (self.gold or {}).items():
            if list(gold.get(table, ())) != rows:
                found.append(f"{table}: expected {_shown(rows)}, is {_shown(gold.get(table, ()))}")
        return found


def case_files(folder: Path) -> list[Path]:
    """Return the files of records in a dataset's folder, sorted."""
    return sorted((folder / CASES).glob("*.jsonl"))


def expected_path(case: Path) -> Path:
    """Return the file of a case's expected results."""
    return case.with_suffix(".expected.json")


def expected_case(case: Path) -> ExpectedCase | None:
    """Return a case's expected results, None without a file. Raises CaseUnreadable."""
    path = expected_path(case)
    try:
        return ExpectedCase.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error.strerror
        raise CaseUnreadable(path, str(first)) from error


def case_text(rejected: Mapping[str, Sequence[str]], gold: Mapping[str, Sequence[Any]]) -> str:
    """Return the text of an expectation."""
    return json.dumps({"rejected": rejected, "gold": gold}, indent=1, ensure_ascii=False) + "\n"


def _verdict(reasons: Sequence[str] | None) -> str:
    return ", ".join(reasons) if reasons else "accepted"


def _shown(rows: Sequence[Any]) -> str:
    return f"{len(rows)} rows {json.dumps(rows, ensure_ascii=False)[:200]}"
