"""Decisions about rejected records: fix, discard, or reinstate by a plan that validates them again.

A decision is written down before it acts. Reinstating is a replay of exactly these offsets from bronze, with the
release that readers see: what keeps the contract now is appended, what does not stays, with its reasons of now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from include.catalog.history_slice import BRONZE, Span, joined_spans
from include.errors import Terminal
from include.reading.decision_log import DISCARD, FIX, Coordinates, Decision, append_decisions, decided_records
from include.reading.publication import read_publication, tables_of
from include.reading.published_tables import PinnedTables
from include.reading.rejected_records import (
    DUPLICATE,
    FIXED,
    OPEN,
    RejectedFilter,
    RejectedRecord,
    rejected_coordinates,
    rejected_records,
    status_of,
)
from include.settings import Settings

LARGEST = 1_048_576


class NotRejected(Terminal):
    """A record about which something was to be decided is not in `rejected`, or is a duplicate there."""

    def __init__(self, dataset: str, place: Coordinates, why: str) -> None:
        super().__init__(
            f"{dataset}: partition {place[0]} offset {place[1]} {why}; nothing was decided",
            f"headrace rejected list --dataset {dataset}",
        )
        self.dataset, self.place = dataset, place


class NothingSelected(Terminal):
    """No rejected record matches the request."""

    def __init__(self, dataset: str) -> None:
        super().__init__(
            f"{dataset}: no rejected record matches; nothing was done",
            f"headrace rejected summary --dataset {dataset}",
        )
        self.dataset = dataset


class FixRefused(Terminal):
    """A payload cannot be a fix."""

    def __init__(self, dataset: str, why: str) -> None:
        super().__init__(f"{dataset}: {why}; nothing was fixed", "give the whole record, corrected, as one JSON object")
        self.dataset = dataset


@dataclass(frozen=True)
class Author:
    """Who decides, when, and why."""

    by: str
    at: datetime
    why: str


def fix(settings: Settings, dataset: str, payloads: Mapping[Coordinates, bytes], who: Author) -> int:
    """Give records a payload that is validated instead of their own; return how many fixes are new.

    It is used when the records are reinstated or validated again. Raises NotRejected, FixRefused.
    """
    for place, payload in payloads.items():
        if not payload or len(payload) > LARGEST:
            why = f"the payload for partition {place[0]} offset {place[1]} has {len(payload)} bytes (1 to {LARGEST})"
            raise FixRefused(dataset, why)
    batches = {place: _record(settings, dataset, place).batch for place in payloads}
    return append_decisions(
        settings, dataset, [decision(FIX, place, batches[place], who, payloads[place]) for place in payloads]
    )


def discard(settings: Settings, dataset: str, selection: RejectedFilter, who: Author) -> int:
    """Decide that records stay rejected, whatever later code accepts; return how many decisions are new."""
    places = selected_records(settings, dataset, selection, (OPEN, FIXED))
    return append_decisions(
        settings, dataset, [decision(DISCARD, place, batch, who) for place, batch in places.items()]
    )


def selected_records(
    settings: Settings, dataset: str, selection: RejectedFilter, statuses: Iterable[str]
) -> dict[Coordinates, int]:
    """Return the selected invalid records with one of these statuses, and their batches. Raises NothingSelected."""
    reading = PinnedTables(tables_of(settings, read_publication(settings, dataset)))
    decided, allowed = decided_records(settings, dataset), set(statuses)
    invalid = replace(selection, disposition="invalid")
    found = {
        place: batch
        for place, batch in rejected_coordinates(reading, dataset, invalid, decided).items()
        if status_of("invalid", decided.get(place)) in allowed
    }
    if not found:
        raise NothingSelected(dataset)
    return found


def record_spans(places: Iterable[Coordinates]) -> list[Span]:
    """Return the records as spans of bronze; adjacent ones are joined."""
    return joined_spans(Span(partition, offset, offset + 1, BRONZE) for partition, offset in places)


def _record(settings: Settings, dataset: str, place: Coordinates) -> RejectedRecord:
    reading = PinnedTables(tables_of(settings, read_publication(settings, dataset)))
    partition, offset = place
    found = rejected_records(reading, dataset, RejectedFilter(offsets={partition: (offset, offset + 1)}))
    if not found:
        raise NotRejected(dataset, place, "is not a rejected record that readers see")
    if found[0].status == DUPLICATE:
        winner = found[0].reasons[0].detail
        raise NotRejected(dataset, place, f"is a duplicate of {winner} (batch/partition/offset)")
    return found[0]


def decision(act: str, place: Coordinates, batch: int, who: Author, payload: bytes | None = None) -> Decision:
    """Return a decision about one record."""
    return Decision(act, *place, batch=batch, at=who.at, by=who.by, why=who.why, payload=payload)
