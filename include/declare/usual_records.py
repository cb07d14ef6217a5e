"""The records of a sample that are like nearly all others: a topic may hold faulty ones, which a contract rejects.

A record is unusual when it lacks a field that nearly all have, has a field that nearly none has, or has a value of
another type, or a time of another form, than nearly all. A small sample has no unusual records.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from include.declare.time_forms import is_day, is_local, is_zoned

NEARLY_ALL = 0.99
LEAST_RECORDS = 200
MOST_UNUSUAL = 0.05
"""When more records are unusual, the sample has no usual form, and all of them count."""
FORMS = {"a time with a zone": is_zoned, "a time": is_local, "a date": is_day}


@dataclass
class FieldTraits:
    """What the values of a field are, counted."""

    present: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    forms: Counter[str] = field(default_factory=Counter)


def split_usual(records: Sequence[Mapping[str, Any]]) -> tuple[list[int], Counter[str]]:
    """Return the numbers of the usual records, and for the others how many have which fault."""
    if len(records) < LEAST_RECORDS:
        return list(range(len(records))), Counter()
    traits = _traits(records)
    faults = [_fault(record, traits, len(records)) for record in records]
    usual = [number for number, fault in enumerate(faults) if not fault]
    if len(records) - len(usual) > MOST_UNUSUAL * len(records):
        return list(range(len(records))), Counter()
    return usual, Counter(fault for fault in faults if fault)


def _traits(records: Sequence[Mapping[str, Any]]) -> dict[str, FieldTraits]:
    found: dict[str, FieldTraits] = defaultdict(FieldTraits)
    for record in records:
        for member, value in record.items():
            if value is not None:
                traits = found[member]
                traits.present += 1
                traits.kinds[_kind(value)] += 1
                traits.forms.update([_form(value)])
    return found


def _fault(record: Mapping[str, Any], traits: Mapping[str, FieldTraits], records: int) -> str:
    """Return how a record differs from nearly all others; "" when it does not."""
    for member, each in traits.items():
        value = record.get(member)
        if value is None:
            if each.present >= NEARLY_ALL * records:
                return f"{member} is missing"
            continue
        if each.present <= (1 - NEARLY_ALL) * records:
            return f"{member} is in few others"
        kind, form = _most(each.kinds), _most(each.forms)
        if kind and _kind(value) != kind:
            return f"{member} is of another type than {kind}"
        if form and _form(value) != form:
            return f"{member} is not {form}"
    return ""


def _most(counts: Counter[str]) -> str:
    """Return what nearly all are, "" when there is no such thing."""
    ((name, count),) = counts.most_common(1)
    return name if count >= NEARLY_ALL * counts.total() else ""


def _kind(value: Any) -> str:
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return "number"
    return type(value).__name__


def _form(value: Any) -> str:
    return next((name for name, matches in FORMS.items() if isinstance(value, str) and matches(value)), "")
