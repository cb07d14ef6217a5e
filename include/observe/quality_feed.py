"""Validations of whole tables: one run each, with the result of every rule on the table that it validated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from include.declare.contract_rules import RuleResult
from include.observe.dataset_facets import Assertion, TableFacts
from include.observe.declared_jobs import BATCH, DeclaredJob
from include.observe.event_cursors import EventCursor
from include.observe.event_delivery import Event
from include.observe.known_tables import KnownTables
from include.observe.outgoing_events import Cursors, Outgoing
from include.observe.run_events import RunFacts, whole_run
from include.observe.validation_history import MOST_KEPT, StoredValidation, stored_validations
from include.read.publication import publications


def quality_events(known: KnownTables, cursors: Cursors) -> Iterator[Outgoing]:
    """Yield the validations that were not sent; of a dataset of which none was sent, the last one."""
    for dataset in publications(known.settings):
        key = f"quality {dataset}"
        sent = cursors[key].at if key in cursors else None
        found = stored_validations(known.settings, dataset, MOST_KEPT)
        for each in found[-1:] if sent is None else [each for each in found if each.checked_at > sent]:
            yield Outgoing(key, _events(known, dataset, each), EventCursor(at=each.checked_at))


def _events(known: KnownTables, dataset: str, validation: StoredValidation) -> Sequence[Event]:
    by_table: dict[str, list[RuleResult]] = {}
    for check in validation.checks:
        by_table.setdefault(check.table, []).append(check)
    about = "Validates whole tables by the rules of contract.yaml or derived.yaml."
    job = DeclaredJob(f"{dataset}.quality", "QUALITY", about, tuple(by_table), {}, BATCH)
    at = validation.checked_at
    tables = {table: TableFacts(assertions=_assertions(checks)) for table, checks in by_table.items()}
    facts = RunFacts(known.naming.run_id(at, job.name, validation.release, validation.batch), tables)
    return whole_run(known.naming, job, facts, at, at)


def _assertions(checks: Sequence[RuleResult]) -> list[Assertion]:
    """Return the rules that were evaluated."""
    return [
        Assertion(
            check.expectation,
            success=check.passed,
            severity="warn" if check.action == "warn" else "error",
            name=check.rule,
            actual=check.observed or None,
        )
        for check in checks
        if check.passed is not None
    ]
