"""Quality of data: a contract's table rules on a plan's build or on the published tables, the report, and drift.

A separate process evaluates the rules of a plan (quality_job.py): Great Expectations is slow to load. For a release,
whole tables are evaluated. For a slice, row rules are evaluated on the resulting rows, and the others on the resulting
tables; an equal slice needs no evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from include.change.checkpoint import validate_tables
from include.change.compare import Side
from include.change.jobs import run_job
from include.declare.column_type import Profile
from include.declare.contract import Column, Contract, joined_path
from include.declare.contract_rules import Rule, RuleResult
from include.declare.derived_dataset import released_contract
from include.declare.payloads import WriterSchemas, define_payload_text
from include.ground.durable_files import write_atomically
from include.ground.errors import Refused, Terminal
from include.ground.paths import docs_page
from include.ground.render_template import render_html
from include.ground.settings import Settings
from include.ground.sql_quoting import json_path, sql_identifier, sql_literal, sql_path
from include.observe.ledger_reader import RuleWarnings, RunCounts
from include.observe.stream_history import StoredValidation, store_validation
from include.plans.plan import Compared, Plan, PlanRecord
from include.read.memory_database import memory_database
from include.read.publication import read_publication, tables_of
from include.read.published_tables import PinnedTables, open_dataset

WIDTH, HEIGHT, MOST_POINTS = 320.0, 48.0, 400


def report_page(report: QualityReport) -> str:
    """Return the page of a report."""
    lines = [(line, share_points(line.shares), max(line.shares, default=0.0)) for line in report.lines]
    title = f"{report.dataset}: quality {_period(report)}"
    return render_html("quality_report.html.j2", title=title, report=report, lines=lines, width=WIDTH, height=HEIGHT)


def checks_page(title: str, checks: Sequence[RuleResult]) -> str:
    """Return a page of results."""
    return render_html("quality_checks.html.j2", title=title, checks=checks)


def _period(report: QualityReport) -> str:
    times = [run.validated_at for run in report.runs]
    return "" if not times else f"from {min(times):%Y-%m-%d %H:%M:%S} to {max(times):%Y-%m-%d %H:%M:%S} UTC"


def share_points(shares: Sequence[float]) -> list[tuple[float, float]]:
    """Return the points (x, y) of a plot over the runs; the greatest share fills the height. Empty when all are 0."""
    points = downsampled(shares)
    highest = max(points, default=0.0)
    step = WIDTH / max(len(points) - 1, 1)
    return [(n * step, 46 - 40 * share / highest) for n, share in enumerate(points)] if highest else []


def downsampled(shares: Sequence[float]) -> list[float]:
    """Return at most MOST_POINTS shares: the greatest of neighbours, so that every peak is kept."""
    size = -(-len(shares) // MOST_POINTS) or 1
    return [max(shares[at : at + size]) for at in range(0, len(shares), size)]


INSTALL = 'make setup GROUPS="runtime quality"'
RESULTS = TypeAdapter(list[RuleResult])


class PlanHeld(Terminal):
    """The built tables fail rules that block a publication; `rules` names them."""

    def __init__(self, plan: str, rules: Sequence[str]) -> None:
        super().__init__(
            f"plan {plan} is held: its tables fail {', '.join(rules)}; readers still get the published tables",
            f"headrace plan show {plan}; then change the code or the contract and plan again",
        )
        self.plan, self.rules = plan, tuple(rules)


def table_rules(built: Side) -> dict[str, list[Rule]]:
    """Return the contract's rules for the built tables, by table; tables without rules are left out."""
    return {name: list(rules) for name in built.tables if (rules := built.dataset.contract.checks(name))}


def run_checks(settings: Settings, plan: Plan, built: Sequence[Side]) -> list[RuleResult]:
    """Evaluate the rules of the built tables in a process of its own; without rules no process is started.

    Without the packages of the group `quality`, every rule is returned as not evaluated. Raises `checks-failed`, and
    JobDied when the process died.
    """
    rules = {table: found for side in built for table, found in table_rules(side).items()}
    if not rules:
        return []
    answer = run_job(settings, plan.id, plan.dataset, ("include.change.quality_job", plan.id), lambda _: None)
    if "checks" in answer:
        return RESULTS.validate_python(answer["checks"])
    if not answer.get("not_installed"):
        why = f"the contract's rules were not evaluated ({answer.get('failed', 'it reported nothing')})"
        what = f"plan {plan.id}: {why}; readers still get the published tables"
        raise Terminal(what, f"headrace plan compare {plan.id}", code="checks-failed", plan=plan.id)
    return [_not_evaluated(table, rule) for table, found in rules.items() for rule in found]


def refuse_held(record: PlanRecord) -> None:
    """Raise PlanHeld when the comparison found a rule broken that holds the plan back."""
    compared = record.find(Compared)
    if compared is not None and compared.blocked_by:
        raise PlanHeld(record.plan.id, compared.blocked_by)


def blocking_rules(checks: Sequence[RuleResult]) -> list[str]:
    """Return the failed rules that block a publication, as `table: rule`."""
    return [f"{check.table}: {check.rule}" for check in checks if check.blocks]


def _not_evaluated(table: str, rule: Rule) -> RuleResult:
    return RuleResult(
        *(table, rule.name, rule.expectation, rule.action, rule.severity), passed=None, observed=f"run {INSTALL}"
    )


@dataclass(frozen=True)
class PublishedChecks:
    """Results of the table rules on one publication; `site`: the folder of its page."""

    dataset: str
    release: str
    batch: int
    checked_at: datetime
    checks: Sequence[RuleResult]
    site: Path

    @property
    def blocks(self) -> bool:
        """Whether a rule that blocks publications failed."""
        return any(check.blocks for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return the results as JSON values; `checked_at` in ISO 8601."""
        return {
            "dataset": self.dataset,
            "release": self.release,
            "batch": self.batch,
            "checked_at": self.checked_at.isoformat(),
            "checks": RESULTS.dump_python(list(self.checks), mode="json"),
            "blocks": self.blocks,
            "site": str(self.site),
        }


def validate_published(settings: Settings, dataset: str, now: datetime) -> PublishedChecks:
    """Evaluate the table rules of every published table, replace the dataset's page, and keep the results.

    Raises NothingPublished, and QualityNotInstalled.
    """
    publication = read_publication(settings, dataset)
    contract = released_contract(settings, dataset, publication.release)
    rows = {name: open_dataset(table) for name, table in tables_of(settings, publication).items()}
    checks, page = validate_tables(tables_with_rules(contract, rows)), docs_page(settings, dataset)
    found = PublishedChecks(dataset, publication.release, publication.batch, now.astimezone(UTC), checks, page.parent)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, _overview(found))
    stored = StoredValidation(publication.release, publication.batch, found.checked_at, checks)
    store_validation(settings, dataset, stored)
    return found


def _overview(found: PublishedChecks) -> str:
    title = f"{found.dataset}, release {found.release}, batch {found.batch}, {found.checked_at:%Y-%m-%d %H:%M:%S} UTC"
    return checks_page(title, found.checks)


def tables_with_rules(contract: Contract, rows: Mapping[str, Any]) -> dict[str, tuple[Any, Sequence[Rule]]]:
    """Return the tables that the contract has table rules for, with these rules."""
    return {name: (table, rules) for name, table in rows.items() if (rules := contract.checks(name))}


REJECTED, WARNED = "rejected", "warned"


@dataclass(frozen=True)
class RuleSummary:
    """One rule over all runs of a report.

    `validated` and `violations` count records; `first`: partition and offset of the first violation (warnings only).
    `passed`: whether at least `mostly` of the validated records pass; None for a rejection, which has no such limit.
    `shares`: violations per validated record, one per run.
    """

    rule: str
    kind: str
    validated: int
    violations: int
    mostly: float | None
    passed: bool | None
    first: tuple[int, int] | None
    shares: Sequence[float]

    @property
    def share(self) -> float:
        """Violations per validated record."""
        return _share(self.violations, self.validated)


@dataclass(frozen=True)
class QualityReport:
    """A dataset's rules over the runs validated in a range of time; `lines`: reasons of rejection, then warnings."""

    dataset: str
    since: datetime | None
    until: datetime | None
    runs: Sequence[RunCounts]
    lines: Sequence[RuleSummary]

    @property
    def records(self) -> int:
        """Number of validated records."""
        return sum(run.rows_in for run in self.runs)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values, without `shares`; times in ISO 8601."""
        lines = [
            {**{name: value for name, value in line.__dict__.items() if name != "shares"}, "share": line.share}
            for line in self.lines
        ]
        return {
            "dataset": self.dataset,
            "from": None if self.since is None else self.since.isoformat(),
            "to": None if self.until is None else self.until.isoformat(),
            "records": self.records,
            "rules": lines,
            "runs": [_run_json(run) for run in self.runs],
        }


def quality_report(
    dataset: str, contract: Contract, runs: Sequence[RunCounts], since: datetime | None, until: datetime | None
) -> QualityReport:
    """Return the report of these runs; `contract` has the limit of each warning."""
    mostly = {rule.name: rule.mostly for rule in contract.record_rules}
    reasons = dict.fromkeys(name for run in runs for name in run.reasons)
    warned = {rule.name: None for rule in contract.record_rules if rule.action == "warn"}
    warned |= {name: None for run in runs for name in run.warnings}
    lines = [_rejection(name, runs) for name in reasons]
    lines.sort(key=lambda line: -line.violations)
    return QualityReport(
        dataset, since, until, runs, [*lines, *(_warning(name, runs, mostly.get(name, 1.0)) for name in warned)]
    )


def _rejection(name: str, runs: Sequence[RunCounts]) -> RuleSummary:
    shares = [_share(run.reasons.get(name, 0), run.rows_in) for run in runs]
    rejected, validated = sum(run.reasons.get(name, 0) for run in runs), sum(run.rows_in for run in runs)
    return RuleSummary(name, REJECTED, validated, rejected, None, None, None, shares)


def _warning(name: str, runs: Sequence[RunCounts], mostly: float) -> RuleSummary:
    none = RuleWarnings(0, 0, None)
    counted = [run.warnings.get(name, none) for run in runs]
    validated, violations = sum(each.validated for each in counted), sum(each.violations for each in counted)
    first = next((each.first for each in counted if each.first is not None), None)
    passed = validated == 0 or (validated - violations) / validated >= mostly
    return RuleSummary(
        name,
        WARNED,
        validated,
        violations,
        mostly,
        passed,
        first,
        [_share(each.violations, each.validated) for each in counted],
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _run_json(run: RunCounts) -> Mapping[str, Any]:
    return {
        "release": run.release,
        "batches": [run.first_batch, run.last_batch],
        "validated_at": run.validated_at.isoformat(),
        "records": run.rows_in,
        "rejected": dict(run.reasons),
        "warned": {
            name: {"validated": each.validated, "violations": each.violations} for name, each in run.warnings.items()
        },
    }


BINS, FEW = 10, 50
NULLS, PSI, DISTINCT = 0.05, 0.2, 2.0
# PSI takes logarithms: an empty bin counts as this share.
LEAST = 1e-4


@dataclass(frozen=True)
class RecordPosition:
    """A record, in the order of ingestion."""

    batch: int
    partition: int
    offset: int


@dataclass(frozen=True)
class DriftWarning:
    """A warning: `measure` is nulls, distinct, range, value, psi or unknown field; `before` and `now` are texts."""

    column: str
    measure: str
    before: str
    now: str
    first: RecordPosition | None


def drift_warnings(
    reading: PinnedTables, contract: Contract, since_batch: int, schemas: WriterSchemas
) -> list[DriftWarning]:
    """Return how silver from batch `since_batch` on differs from all before; it refuses when a side is empty."""
    name = contract.dataset
    with _database(reading, contract, since_batch, schemas) as database:
        sizes = dict(database.execute("select fresh, count(*) from rows group by fresh").fetchall())
        if not sizes.get(True) or not sizes.get(False):
            what = f"{name}: silver has no records on one side of batch {since_batch}; nothing was compared"
            remedy = f"headrace ledger show --dataset {name}, then another --since-batch"
            raise Refused(what, remedy, code="nothing-to-compare", batch=since_batch)
        known = {name for name, *_ in database.execute("describe rows").fetchall()}
        columns = [column for column in contract.plain_columns if column.name in known or "." not in column.name]
        found = [warning for column in columns for warning in _column(database, column)]
        return [*found, *_unknown_fields(database, contract)]


def _database(reading: PinnedTables, contract: Contract, since_batch: int, schemas: WriterSchemas) -> Any:
    database, dataset = memory_database(), contract.dataset
    define_payload_text(database, schemas, contract.payload.is_framed, contract.columns)
    database.register("silver", reading.arrow(f"silver.{dataset}"))
    database.register("bronze", reading.arrow(f"bronze.{dataset}"))
    fields = "".join(f", {sql} as {sql_identifier(name)}" for name, sql in _fields_inside(database, contract).items())
    database.execute(f"create view rows as select *, _batch_id >= {int(since_batch)} as fresh{fields} from silver")
    database.execute(
        'create view payloads as select _batch_id, partition as _partition, "offset" as _offset, '
        f"payload_text(value) as payload from bronze where _batch_id >= {int(since_batch)}"
    )
    return database


def _fields_inside(database: Any, contract: Contract) -> dict[str, str]:
    """Return SQL for each field inside of an object of silver, by its name there: `customer.city`."""
    types = dict(database.sql("select column_name, column_type from (describe silver)").fetchall())
    named = [column.name for column in contract.plain_columns if "." in column.name]
    inside = [name for name in named if types.get(name.partition(".")[0], "").startswith("STRUCT")]
    return {name: sql_path(name) for name in inside}


def _column(database: Any, column: Column) -> Iterator[DriftWarning]:
    yield from _nulls(database, column.name)
    if column.kind.profile is Profile.range:
        yield from _range(database, column.name)
        yield from _psi(database, column.name, _bins(database, column.name))
    elif column.kind.profile is Profile.values:
        yield from _values(database, column.name)


def _nulls(database: Any, column: str) -> Iterator[DriftWarning]:
    shares = dict(database.execute(f'select fresh, avg(("{column}" is null)::int) from rows group by fresh').fetchall())
    before, now = shares[False], shares[True]
    if abs(now - before) > NULLS:
        condition = f'"{column}" is null' if now > before else f'"{column}" is not null'
        yield DriftWarning(column, "nulls", f"{before:.1%}", f"{now:.1%}", _first(database, condition))


def _range(database: Any, column: str) -> Iterator[DriftWarning]:
    sql = f'select min("{column}"), max("{column}") from rows where not fresh'
    low, high = database.execute(sql).fetchone()
    if low is None:
        return
    condition = f'("{column}" < {low} or "{column}" > {high})'
    first = _first(database, condition)
    if first is not None:
        now = database.execute(f'select min("{column}"), max("{column}") from rows where fresh').fetchone()
        yield DriftWarning(column, "range", f"{low} to {high}", f"{now[0]} to {now[1]}", first)


def _bins(database: Any, column: str) -> str:
    """Return SQL for the bin of a value: bins have equally many earlier values, where values differ."""
    at = [n / BINS for n in range(1, BINS)]
    (edges,) = database.execute(f'select quantile_cont("{column}", {at}) from rows where not fresh').fetchone()
    distinct = sorted({float(edge) for edge in edges or ()})
    return " + ".join(f'("{column}" > {edge!r})::int' for edge in distinct) or "0"


def _values(database: Any, column: str) -> Iterator[DriftWarning]:
    """For a column with few values: new ones, and each one's frequency; for any other: the number of values."""
    sql = f'select fresh, count(distinct "{column}"), count("{column}") from rows group by fresh'
    counted = {fresh: (distinct, rows) for fresh, distinct, rows in database.execute(sql).fetchall()}
    if counted[False][0] > FEW:
        # Of as many rows each: more rows have more values.
        rows = min(counted[False][1], counted[True][1])
        before, now = (_distinct(database, column, fresh, rows) for fresh in (False, True))
        if before and now and max(before, now) / min(before, now) > DISTINCT:
            yield DriftWarning(
                column, "distinct", f"{before:,} of {rows:,}", f"{now:,} of {rows:,}", _first(database, "true")
            )
        return
    known = f'(select "{column}" from rows where not fresh and "{column}" is not null)'
    first = _first(database, f'"{column}" is not null and "{column}" not in {known}')
    if first is not None:
        sql = f'select distinct "{column}"::varchar from rows where fresh and "{column}" not in {known} order by 1'
        fresh = [value for (value,) in database.execute(sql).fetchall()]
        yield DriftWarning(column, "value", f"{counted[False][0]} values", f"also {', '.join(fresh[:5])}", first)
    yield from _psi(database, column, f'"{column}"::varchar')


def _distinct(database: Any, column: str, fresh: bool, rows: int) -> int:
    order = "order by _batch_id, _partition, _offset"
    some = f'select "{column}" as v from rows where fresh = {fresh} and "{column}" is not null {order} limit {rows}'
    return int(database.execute(f"select count(distinct v) from ({some})").fetchone()[0])


def _psi(database: Any, column: str, bin_of: str) -> Iterator[DriftWarning]:
    sql = f'select {bin_of} as bin, fresh, count(*) from rows where "{column}" is not null group by all'
    counts: dict[Any, dict[bool, int]] = {}
    for place, fresh, rows in database.execute(sql).fetchall():
        counts.setdefault(place, {})[fresh] = rows
    totals = {side: sum(found.get(side, 0) for found in counts.values()) for side in (False, True)}
    if not all(totals.values()):
        return
    parts = {place: psi_term(found, totals) for place, found in counts.items()}
    if sum(parts.values()) > PSI:
        # A value that became rarer has no first record, so the value whose share grew most is named.
        worst = max(counts, key=lambda place: _growth(counts[place], totals))
        shares = [counts[worst].get(side, 0) / totals[side] for side in (False, True)]
        place = worst.replace("'", "''") if isinstance(worst, str) else worst
        first = _first(database, f"({bin_of}) = '{place}'")
        detail = f"PSI {sum(parts.values()):.2f}, most more of {_named(worst)}: {shares[1]:.1%}"
        yield DriftWarning(column, "psi", f"{shares[0]:.1%}", detail, first)


def psi_term(counts: Mapping[bool, int], totals: Mapping[bool, int]) -> float:
    """Return one bin's part of the population stability index: (now - before) · ln(now / before), of shares."""
    before, now = (max(counts.get(side, 0) / totals[side], LEAST) for side in (False, True))
    return (now - before) * math.log(now / before)


def _growth(counts: Mapping[bool, int], totals: Mapping[bool, int]) -> float:
    return counts.get(True, 0) / totals[True] - counts.get(False, 0) / totals[False]


def _named(place: Any) -> str:
    return f"{place!r}" if isinstance(place, str) else f"bin {int(place) + 1}"


def _first(database: Any, condition: str) -> RecordPosition | None:
    sql = f"select min((_batch_id, _partition, _offset)) from rows where fresh and {condition}"
    (found,) = database.execute(sql).fetchone()
    return None if found is None else RecordPosition(*_numbers(found))


def _unknown_fields(database: Any, contract: Contract) -> Iterator[DriftWarning]:
    """Fields of accepted and rejected payloads that the contract does not have, in objects of which it reads some."""
    objects: dict[tuple[str, ...], set[str]] = {}
    for column in contract.plain_columns:
        for depth, member in enumerate(column.path):
            objects.setdefault(column.path[:depth], set()).add(member)
    paths = list(objects)
    parts = ", ".join(f"json_extract(text, {sql_literal(json_path(path))})" for path in paths)
    known = ", ".join(f"[{', '.join(map(sql_literal, sorted(objects[path])))}]" for path in paths)
    for number, field, rows, place in database.execute(UNKNOWN_FIELDS.format(parts=parts, known=known)).fetchall():
        named, first = joined_path((*paths[number - 1], field)), RecordPosition(*_numbers(place))
        yield DriftWarning(named, "unknown field", "no field of the contract", f"{rows:,} records", first)


UNKNOWN_FIELDS = """
select number, field, count(*), min((_batch_id, _partition, _offset))
from (
    select _batch_id, _partition, _offset, number, unnest(json_keys(part)) as field
    from (
        select *, unnest([{parts}]) as part, generate_subscripts([{parts}], 1) as number
        from (select *, case when json_valid(payload) then payload end as text from payloads)
    )
    where json_type(part) = 'OBJECT'
)
where not list_contains([{known}][number], field) group by number, field order by number, field
"""


def _numbers(place: Any) -> Sequence[int]:
    """DuckDB gives a row value as a tuple or as a mapping."""
    return [int(number) for number in (place.values() if isinstance(place, dict) else place)]
