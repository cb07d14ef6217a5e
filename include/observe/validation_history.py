"""The results of table rules on published tables: the last validations, in `quality/<dataset>/validations.jsonl`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from include.declare.contract_rules import RuleResult
from include.ground.durable_files import write_atomically
from include.ground.paths import quality_path
from include.ground.settings import Settings

MOST_KEPT = 500


@dataclass(frozen=True)
class StoredValidation:
    """The results of one validation, at one publication."""

    release: str
    batch: int
    checked_at: datetime
    checks: Sequence[RuleResult]


VALIDATIONS = TypeAdapter(StoredValidation)


def _validations_path(settings: Settings, dataset: str) -> Path:
    return quality_path(settings, dataset) / "validations.jsonl"


def store_validation(settings: Settings, dataset: str, validation: StoredValidation) -> None:
    """Add a validation; the oldest ones beyond MOST_KEPT go. Raises OSError."""
    path = _validations_path(settings, dataset)
    lines = path.read_bytes().splitlines() if path.is_file() else []
    lines = [*lines[1 - MOST_KEPT :], VALIDATIONS.dump_json(validation)]
    write_atomically(path, b"\n".join(lines) + b"\n", durable=False)


def stored_validations(settings: Settings, dataset: str, count: int) -> list[StoredValidation]:
    """Return the last validations, oldest first; a line that is none is left out."""
    path = _validations_path(settings, dataset)
    lines = path.read_bytes().splitlines()[-count:] if path.is_file() else []
    return [found for line in lines if (found := _parsed(line)) is not None]


def _parsed(line: bytes) -> StoredValidation | None:
    try:
        return VALIDATIONS.validate_json(line)
    except ValidationError:
        return None
