"""Audit one dataset: compare Kafka, bronze, silver, rejected and gold of one publication (invariants I1–I5).

It uses neither Spark nor the ledger nor any count that a driver reported, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import polars as pl
import pyarrow.compute as pc

from include.audit.bronze import CommittedRange, left_over_findings
from include.audit.changed_gold import changed_gold, changed_gold_check
from include.audit.files import READ_ERRORS, FileCheck, file_check, unreadable_files, unreadable_table
from include.audit.findings import Finding, FindingKind, merge_findings
from include.audit.gold import GoldCheck, UncheckedTable, gold_check
from include.audit.kafka import Topic
from include.audit.kafka_comparison import AuditInput, KafkaCounts, is_compared, kafka_findings, payload_view
from include.audit.loaded_files import FileSetCheck
from include.audit.mirror import MirrorCheck, MirrorResult
from include.audit.silver import (
    ALL_SILVER,
    ChildBalance,
    child_balance,
    define_exact_number,
    layer_counts,
    number_findings,
    orphan_findings,
    register_fixes,
    repeated_findings,
    split_findings,
)
from include.audit.verified_history import AuditScope, VerifiedGold
from include.declare.children import Children, child_table
from include.declare.column_lineage import unchanged_fields
from include.declare.dataset import Dataset
from include.declare.envelopes import columns_read, text_of_row
from include.declare.gold import EVERY_RUN, Gold
from include.ground.record_coordinates import FIRST_FILE_SET
from include.read.memory_database import memory_database, view_table
from include.read.publication import Publication, PublishedTable
from include.read.published_tables import RECORD_LAYERS, PinnedTables, RefreshState, stored_refresh_state


@dataclass(frozen=True)
class DeepAudit:
    """The tables recomputed from bronze: the `records` used, the `rows` compared by table.

    `repair` is the command that recomputes the batches with findings; empty without findings.
    """

    release: str
    batch: int
    records: int
    rows: Mapping[str, int]
    findings: Sequence[Finding]
    unchecked: Sequence[UncheckedTable]
    repair: str


def deep_audit(dataset: str, found: Mapping[str, Any]) -> DeepAudit:
    """Return the result of a job as it reported it."""
    tables = found["differences"]
    batches = [table["batches"] for table in tables if table["batches"]]
    repair = ""
    if batches:
        span = f"{min(first for first, _ in batches)}..{max(last for _, last in batches)}"
        repair = f"headrace replay run --dataset {dataset} --batches {span} --source bronze"
    is_inherited = found["first"] > found.get("expired", 0)
    inherited = f"batches before {found['first']} were inherited from another release" if is_inherited else ""
    return DeepAudit(
        release=found["release"],
        batch=found["batch"],
        records=found["records"],
        rows={table["table"]: table["rows"] for table in tables},
        findings=[finding for table in tables for finding in _findings(table)],
        unchecked=[UncheckedTable(f"silver.{dataset}", "", inherited)] if inherited else [],
        repair=repair,
    )


def _findings(table: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each sample, and one for all other rows of its kind."""
    name, named = table["table"], dict.fromkeys(table["counts"], 0)
    for row in table["samples"]:
        kind, offset = FindingKind(row["kind"]), row["offset"]
        named[kind.value] += 1
        detail = f"{row['label']}: {_what(kind, row['values'])}" if row["label"] else _what(kind, row["values"])
        yield Finding(kind, name, 1, detail, row["partition"], offset, None if offset is None else offset + 1)
    for kind, count in table["counts"].items():
        if count > named[kind]:
            yield Finding(FindingKind(kind), name, count - named[kind], f"{count - named[kind]:,} more rows")


def _what(kind: FindingKind, values: Mapping[str, Sequence[str | None]]) -> str:
    if kind is FindingKind.missing:
        return "bronze gives this row, it is not published"
    if kind is FindingKind.surplus:
        return "bronze does not give this row"
    return ", ".join(f"{column} is {_shown(old)}, bronze gives {_shown(new)}" for column, (old, new) in values.items())


def _shown(value: str | None) -> str:
    return "null" if value is None else repr(value)


Progress = Callable[[str], None]
MEMORY = "3GB"
COUNTS = ("kafka", *RECORD_LAYERS, "expired", "removed")
EVERYTHING = AuditScope()


@dataclass(frozen=True)
class PartitionBalance:
    """Records of one partition in each layer, up to the published end offset.

    `kafka`: records that Kafka has, or had when an earlier audit verified them; `expired`: rows of bronze whose
    records Kafka has deleted (only their offset ranges are checked); `later`: offsets in Kafka after the published end.
    """

    partition: int
    published_end: int
    kafka: int
    expired: int
    bronze: int
    silver: int
    rejected: int
    later: int
    removed: int = 0
    """Rows of batches that have expired from bronze, as its commits counted them."""


@dataclass(frozen=True)
class DatasetAudit:
    """The result for one dataset; `release` and `batch` are None when it has no publication.

    `unchecked`: tables that were not checked, because DuckDB could not recompute them or because a table that they are
    compared with is damaged; all others were. `lost`: offsets that Kafka expired before they were read, accepted by
    `headrace repair`. `first_unexpired`: the first batch of each layer that has not expired. `files`: those of each
    table, verified by checksum. `deep`: what was recomputed from bronze; its findings are among `findings`.
    """

    dataset: str
    release: str | None
    batch: int | None
    partitions: tuple[PartitionBalance, ...]
    gold: tuple[GoldCheck, ...] = ()
    findings: tuple[Finding, ...] = ()
    unchecked: tuple[UncheckedTable, ...] = ()
    lost: tuple[CommittedRange, ...] = ()
    files: tuple[FileCheck, ...] = ()
    deep: DeepAudit | None = None
    first_unexpired: Mapping[str, int] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    """Of a derived dataset: the tables that its run used, with their batches."""
    scope: AuditScope = EVERYTHING
    """What was compared; `partitions` also count the records that were verified before."""
    children: tuple[ChildBalance, ...] = ()
    mirrors: tuple[MirrorCheck, ...] = ()
    """Of `audit --source`: gold tables compared with the tables of a database."""
    loaded: tuple[FileSetCheck, ...] = ()
    """The sets of files whose records the release has besides those of the topic."""
    standing: str = ""
    """Why nothing more will be published: the stream has failed or is halted; "" while it continues."""

    @property
    def balanced(self) -> bool:
        """Whether every table was checked and nothing is wrong."""
        return not self.findings and not self.unchecked


def with_deep_audit(audit: DatasetAudit, deep: DeepAudit) -> DatasetAudit:
    """Add the findings of a deep audit, which also checks the tables that DuckDB could not recompute."""
    unchecked = [skipped for skipped in audit.unchecked if not (skipped.expression and skipped.table in deep.rows)]
    findings = tuple(merge_findings([*audit.findings, *deep.findings]))
    return replace(audit, findings=findings, unchecked=(*unchecked, *deep.unchecked), deep=deep)


def with_mirrors(audit: DatasetAudit, found: MirrorResult) -> DatasetAudit:
    """Add the comparison of gold tables with a database."""
    findings = tuple(merge_findings([*audit.findings, *found.findings]))
    unchecked = (*audit.unchecked, *found.unchecked)
    return replace(audit, findings=findings, unchecked=unchecked, mirrors=tuple(found.checks))


def unpublished_audit(dataset: str, topic: Topic | None) -> DatasetAudit:
    """Return the audit of a dataset without a publication: the offsets in Kafka, and no findings."""
    waiting = {} if topic is None else topic.ends
    balances = (PartitionBalance(p, 0, 0, 0, 0, 0, 0, end - topic.starts[p]) for p, end in waiting.items() if topic)
    return DatasetAudit(dataset, None, None, tuple(balances))


def dataset_audit(
    given: AuditInput, progress: Progress = lambda _: None, scope: AuditScope = EVERYTHING
) -> DatasetAudit:
    """Audit one dataset; `progress` receives the name of each step.

    Records that `scope` has as verified are not compared again, and grains of gold that no newer record touches not
    recomputed. Raises AuditUnavailable when Kafka cannot be read to the end.
    """
    counted, audited = KafkaCounts(), _AuditedTables(given.tables, scope)
    for table in given.tables.tables:
        progress(f"{given.dataset.name}: files of {table}")
        audited.check_files(table)
    layers = [given.table(layer) for layer in RECORD_LAYERS]
    with _database(audited, layers, scope.batch, sorted(given.files.sets)) as database:
        _check_records(given, audited, counted, database, progress)
        for gold in given.dataset.pipeline.gold:
            progress(f"{given.dataset.name}: {gold.table} against silver")
            _check_gold(audited, database, given.table("silver"), gold, counted.aged.of("silver"))
        for children in given.dataset.pipeline.children:
            _check_children(audited, database, given.dataset.name, children)
    return DatasetAudit(
        given.dataset.name,
        given.publication.release,
        given.publication.batch,
        _balances(given.publication, given.topic, counted, scope),
        tuple(audited.gold),
        tuple(merge_findings(audited.findings)),
        tuple(audited.unchecked.values()),
        tuple(counted.lost),
        tuple(audited.files),
        first_unexpired=counted.aged.kept if counted.aged.complete else {},
        scope=scope.with_gold(audited.reached),
        children=tuple(audited.children),
        loaded=given.files.checks,
    )


def _check_records(
    given: AuditInput, audited: _AuditedTables, counted: KafkaCounts, database: Any, progress: Progress
) -> None:
    dataset, publication, scope = given.dataset, given.publication, audited.scope
    name, pipeline = dataset.name, dataset.pipeline
    layers = bronze, silver, rejected = [given.table(layer) for layer in RECORD_LAYERS]
    register_fixes(database, given.fixes)
    contract = dataset.contract
    contract.payload.define_texts(database, given.schemas, columns_read(contract), text_of_row(contract))
    define_exact_number(database)
    progress(f"{name}: bronze against Kafka and its commits")
    audited.check(bronze, [bronze], lambda: kafka_findings(database, given, counted, scope))
    progress(f"{name}: silver and rejected against bronze")
    first, kept = counted.aged.complete, counted.aged.of("silver")
    columns = {column.name: column for column in dataset.contract.columns}
    audited.check(silver, layers, lambda: left_over_findings(database, name, counted.aged))
    sound = not any(finding.table == bronze for finding in audited.findings) and bronze not in audited.unchecked

    def splits() -> Iterator[Finding]:
        distinct = sound and is_compared(database, counted)
        return split_findings(database, name, publication.batch, first, distinct=distinct)

    audited.check(silver, layers, splits)
    inherited = dataset.release_start.batch if dataset.release_start else 0
    audited.check(silver, layers, lambda: number_findings(database, name, _numbers_as_sent(dataset), inherited))
    audited.check(silver, [silver], lambda: repeated_findings(database, name, pipeline, scope.batch))
    audited.check(
        rejected,
        layers,
        lambda: orphan_findings(database, name, pipeline, kept, columns, payload_view(database, counted)),
    )
    readable = [table for table in layers if table not in audited.damaged]
    counted.layers = _rows_by_partition(layer_counts(database, readable))


def _numbers_as_sent(dataset: Dataset) -> dict[str, str]:
    """Return the columns whose numbers are those of the payloads. Avro has no number that a double could change."""
    is_known = not dataset.contract.payload.is_decoded and (dataset.folder / "silver.py").is_file()
    return unchanged_fields(dataset) if is_known else {}


@dataclass
class _AuditedTables:
    """The result so far. `damaged`: tables that cannot be read; only checks that need one of them are left out.

    `reached`: how far gold tables are verified if the audit is balanced.
    """

    tables: PinnedTables
    scope: AuditScope
    findings: list[Finding] = field(default_factory=list)
    gold: list[GoldCheck] = field(default_factory=list)
    unchecked: dict[str, UncheckedTable] = field(default_factory=dict)
    files: list[FileCheck] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)
    reached: dict[str, VerifiedGold] = field(default_factory=dict)
    children: list[ChildBalance] = field(default_factory=list)

    def check_files(self, name: str) -> None:
        """Verify a table's files; a table whose log cannot be read is damaged."""
        try:
            counted, wrong = file_check(self.tables.table(name), self.scope.unchanged(name))
        except READ_ERRORS as error:
            self.damaged.add(name)
            self.findings.append(unreadable_table(self.tables.table(name), error))
        else:
            self.files.append(counted)
            self.findings += wrong

    def check(self, audited: str, needed: Sequence[str], findings: Callable[[], Iterable[Finding]]) -> None:
        """Add the findings about `audited`; when a table of `needed` cannot be read, name its file and continue."""
        if self.damaged.isdisjoint(needed):
            try:
                self.findings += list(findings())
                return
            except READ_ERRORS as error:
                self._name_damage(audited, needed, error)
        unreadable = ", ".join(name for name in needed if name in self.damaged)
        if audited not in self.damaged:
            self.unchecked[audited] = UncheckedTable(audited, "", f"{unreadable} cannot be read")

    def _name_damage(self, audited: str, needed: Sequence[str], error: Exception) -> None:
        found = [finding for name in needed for finding in unreadable_files(self.tables.table(name))]
        found = found or [unreadable_table(self.tables.table(audited), error)]
        self.damaged |= {finding.table for finding in found}
        named = {finding.table for finding in self.findings if finding.kind == FindingKind.damaged}
        self.findings += [finding for finding in found if finding.table not in named]


def _database(audited: _AuditedTables, layers: Sequence[str], after: int, file_sets: Sequence[int]) -> Any:
    """Open a database with a view of each layer: the rows of batches > `after`; and one of all rows of silver."""
    database = memory_database(MEMORY)
    for table in layers:
        if table not in audited.damaged:
            audited.check(table, [table], partial(_view_layer, database, audited.tables, table, after, file_sets))
    return database


def _view_layer(database: Any, tables: PinnedTables, table: str, after: int, file_sets: Sequence[int]) -> list[Finding]:
    """Create the views of a table of records. There is no finding: what cannot be read raises READ_ERRORS.

    Bronze also has sets of files that are not of the release: loaded for one that is not published.
    """
    layer, rows = table.partition(".")[0], tables.arrow(table)
    names = [layer, ALL_SILVER] if layer == "silver" else [layer]
    if after < 0:
        own = "".join(f" or partition = {each}" for each in file_sets)
        where = f"partition < {FIRST_FILE_SET} or partition is null{own}" if layer == "bronze" else "true"
        for name in names:
            view_table(database, name, tables.table(table).path, rows, where)
        return []
    if layer == "bronze":
        partition = pc.field("partition")
        rows = rows.filter((partition < FIRST_FILE_SET) | partition.is_null() | partition.isin(file_sets))
    # By Arrow, which does not open the files of older batches: most. A row without a batch is never verified.
    newer = (pc.field("_batch_id") > after) | pc.field("_batch_id").is_null()
    for name in names:
        database.register(name, rows if name == ALL_SILVER else rows.filter(newer))
    return []


def _check_gold(audited: _AuditedTables, database: Any, silver: str, gold: Gold, first: int) -> None:
    name = gold.table
    if name not in audited.tables.tables:
        audited.gold.append(GoldCheck(name, 0, 0))
        audited.findings.append(Finding(FindingKind.missing, name, 0, "declared by the release but not published"))
        return

    def findings() -> list[Finding]:
        refreshed = _refresh_state(audited.tables, gold)
        rows = _rows_held(audited.tables.arrow(silver), gold, refreshed)
        changed = changed_gold(audited.tables, audited.scope, gold, rows, refreshed)
        found = None if changed is None else changed_gold_check(database, changed, first)
        if found is None:
            _view_gold(audited.tables, database, name, silver, gold, refreshed)
            found = gold_check(database, gold, refreshed, first)
        if (check := found.check) is not None:
            held = audited.tables.table(silver).batch if gold.refresh_interval is None else refreshed.batch
            audited.gold.append(replace(check, batch=held if held < audited.tables.table(silver).batch else None))
            audited.reached[name] = VerifiedGold(held, refreshed.watermark, check.decided, check.expired)
        if found.unchecked is not None:
            audited.unchecked[name] = found.unchecked
        return [*found.findings, *_batch_findings(audited.tables.table(name), gold, refreshed)]

    audited.check(name, [silver, name], findings)


def _check_children(audited: _AuditedTables, database: Any, dataset: str, children: Children) -> None:
    layers = ("silver", "rejected") if children.rejects_alone else ("silver",)
    tables = [f"{layer}.{child_table(dataset, children.name)}" for layer in layers]
    if not set(tables) <= set(audited.tables.tables):
        return

    def findings() -> list[Finding]:
        balance, found = child_balance(database, audited.tables, dataset, children)
        audited.children.append(balance)
        return found

    audited.check(tables[0], [f"silver.{dataset}", *tables], findings)


def _view_gold(
    tables: PinnedTables, database: Any, name: str, silver: str, gold: Gold, refreshed: RefreshState
) -> None:
    last = _last_batch(gold, refreshed)
    held = "true" if last is None else f"_batch_id <= {last}"
    for view, table, where in (("published", name, "true"), ("silver", silver, held)):
        view_table(database, view, tables.table(table).path, tables.arrow(table), where)


def _batch_findings(table: PublishedTable, gold: Gold, refreshed: RefreshState) -> Iterator[Finding]:
    if gold.refresh_interval is not None and refreshed.batch != table.batch:
        detail = f"is published as of batch {table.batch}, and its commit says {refreshed.batch}"
        yield Finding(FindingKind.different, table.name, 0, detail)


def _refresh_state(tables: PinnedTables, gold: Gold) -> RefreshState:
    """Return how far a table is refreshed, from its own commits, which may be ahead of the publication."""
    if gold.refresh == EVERY_RUN:
        # No commit of it has a state: the search would read all of them.
        return RefreshState()
    table = tables.table(gold.table)
    return stored_refresh_state(table.path, table.version)


def _last_batch(gold: Gold, refreshed: RefreshState) -> int | None:
    """Return the batch up to which a table with an interval has the rows of silver; None for all of them."""
    return None if gold.refresh_interval is None else refreshed.batch


def _rows_held(silver: Any, gold: Gold, refreshed: RefreshState) -> Any:
    last = _last_batch(gold, refreshed)
    return silver if last is None else silver.filter(pc.field("_batch_id") <= last)


def _rows_by_partition(counts: pl.DataFrame) -> Mapping[int, Mapping[str, Any]]:
    # Rows without a partition are findings.
    return {row["partition"]: row for row in counts.drop_nulls("partition").iter_rows(named=True)}


def _balances(
    publication: Publication, topic: Topic, counted: KafkaCounts, scope: AuditScope
) -> tuple[PartitionBalance, ...]:
    found = []
    for p in sorted(set(counted.layers) | set(publication.offsets) | set(topic.ends)):
        end, of_kafka = publication.offsets.get(p, 0), {"kafka": counted.kafka.get(p, 0)}
        gone = {"expired": counted.expired.get(p, 0), "removed": counted.aged.rows.get(p, 0)}
        compared = {**counted.layers.get(p, {}), **of_kafka, **gone}
        counts = {name: int(compared.get(name, 0)) + scope.records(p, name) for name in COUNTS}
        later = max(0, topic.ends.get(p, 0) - max(end, topic.starts.get(p, 0)))
        found.append(PartitionBalance(p, end, later=later, **counts))
    return tuple(found)
