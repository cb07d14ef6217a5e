"""Is a gold table of kind `changes` the table of the database that it mirrors? Keys and hashes, range by range of keys.

A range whose rows or hashes differ is compared row by row. A row that has changed since the moment of the comparison is
computed as of that moment, from silver (adr-0004).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from include.audit.files import READ_ERRORS
from include.audit.findings import Finding, FindingKind
from include.audit.gold import DIALECT, UncheckedTable, columns_of, everywhere_sql, recompute_sql
from include.audit.kafka import Topic
from include.audit.source import (
    MIRROR_DIGEST,
    DatabaseTable,
    Moment,
    SourceDatabase,
    SourceUnusable,
    mirrored_table,
    row_hash,
)
from include.declare.dataset import Dataset, ReleaseUnknown, released_dataset
from include.declare.gold import Gold
from include.declare.yaml_declarations import DeclarationRefused
from include.ground.errors import HeadraceError
from include.ground.processes import NoProgress, Waiting
from include.ground.settings import Settings
from include.ground.sql_quoting import sql_identifier
from include.read.memory_database import memory_database, view_table
from include.read.publication import batches_behind, find_publication, read_publication, tables_of
from include.read.published_tables import PinnedTables, open_dataset

MEMORY = "2GB"
RANGE_ROWS, MOST_RANGES = 5000, 2000
NAMED = 20
"""Rows of a table that a finding each names."""
LISTED = 1000
"""Rows that begin to tell which table the records are about."""
POLL_SECONDS = 0.2
Progress = Callable[[str], None]
Counted = Sequence[tuple[int, int, int]]
"""Of ranges of keys: the number, the rows, the sum of their hashes."""


@dataclass(frozen=True)
class MirrorCheck:
    """A gold table compared with its `source` at the LSN `position`: the source's rows, in so many ranges of keys.

    `since`: rows that have changed since then; they were compared as they were. `findings`: how many are
    about it. `left_out`: columns not compared.
    """

    table: str
    source: str
    position: str
    rows: int
    ranges: int
    since: int
    findings: int
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mirror:
    """A gold table of a dataset with the table that it mirrors. `bounds`: where ranges of keys begin, as texts."""

    dataset: Dataset
    gold: Gold
    source: DatabaseTable
    bounds: tuple[str, ...]
    bound_type: str


@dataclass
class MirrorResult:
    """What the comparison of a dataset's mirrors gave."""

    checks: list[MirrorCheck] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unchecked: list[UncheckedTable] = field(default_factory=list)

    def leave_out(self, tables: Iterable[str], why: Exception) -> None:
        """Say why these tables were not compared with the source."""
        said = f"{why.what} ({why.remedy})" if isinstance(why, HeadraceError) else f"it cannot be read: {why}"
        self.unchecked += [UncheckedTable(table, "", f"against the source: {said}") for table in tables]


@dataclass(frozen=True)
class PublishedChanges:
    """A dataset with gold of kind `changes` under envelope debezium, as one publication has it."""

    dataset: Dataset
    tables: PinnedTables
    gold: tuple[Gold, ...]

    @property
    def names(self) -> list[str]:
        """Its gold tables that mirror one."""
        return [each.table for each in self.gold]


UNREADABLE = (HeadraceError, *READ_ERRORS)


def mirror_audits(
    settings: Settings,
    database: SourceDatabase,
    names: Sequence[str],
    open_topic: Callable[[str], Topic],
    progress: Progress = lambda _: None,
) -> dict[str, MirrorResult]:
    """Compare the mirrors in these datasets with the database, all at one moment of it.

    A dataset that mirrors no table has no result; tables that could not be compared are in `unchecked`.
    """
    published = {name: each for name in names if (each := _published_changes(settings, name)) is not None}
    results, mirrors = {name: MirrorResult() for name in published}, dict[str, list[Mirror]]()
    for name, each in published.items():
        try:
            mirrors[name] = list(_mirrors(database, each))
        except UNREADABLE as why:
            results[name].leave_out(each.names, why)
    if not mirrors:
        return results
    try:
        moment, counted = _common_moment(database, [each for found in mirrors.values() for each in found], progress)
    except SourceUnusable as why:
        for name in mirrors:
            results[name].leave_out(published[name].names, why)
        return results
    for name, found in mirrors.items():
        progress(f"{name}: waiting for the publication of what was in the log")
        try:
            tables = _await_published(settings, published[name], open_topic)
        except UNREADABLE as why:
            results[name].leave_out(published[name].names, why)
            continue
        for mirror in found:
            progress(f"{name}: {mirror.gold.table} against {mirror.source.full_name}")
            try:
                _compare(database, tables, mirror, moment, counted[mirror.gold.table], results[name])
            except UNREADABLE as why:
                results[name].leave_out([mirror.gold.table], why)
    return results


def _common_moment(
    database: SourceDatabase, mirrors: Sequence[Mirror], progress: Progress
) -> tuple[Moment, Mapping[str, Counted]]:
    """Begin the moment of all tables, and wait until Kafka has what it sees. Raises SourceUnusable."""
    progress(f"{database.name}: one moment of all tables")
    moment = database.moment(list({mirror.source.full_name: mirror.source for mirror in mirrors}.values()))
    counted = {mirror.gold.table: database.ranges(mirror.source, mirror.bounds) for mirror in mirrors}
    _await_captured(database, progress)
    return moment, counted


def _compare(
    database: SourceDatabase,
    tables: PinnedTables,
    mirror: Mirror,
    moment: Moment,
    counted: Counted,
    result: MirrorResult,
) -> None:
    with memory_database(MEMORY) as memory:
        compared = _MirrorComparison(database, memory, tables, mirror, moment)
        differing = compared.findings(counted)
        result.findings += differing
        result.checks.append(compared.check(counted, len(differing)))


def _published_changes(settings: Settings, name: str) -> PublishedChanges | None:
    """Return what a dataset mirrors; None when it mirrors nothing, or when its audit names its release as damaged."""
    publication = find_publication(settings, name)
    if publication is None or publication.is_derived:
        return None
    try:
        dataset = released_dataset(settings, name, publication.release)
    except (ReleaseUnknown, DeclarationRefused):
        return None
    kept = tuple(gold for gold in dataset.pipeline.gold if gold.current_rows)
    if not kept or dataset.contract.envelope != "debezium":
        return None
    return PublishedChanges(dataset, PinnedTables(tables_of(settings, publication)), kept)


def _mirrors(database: SourceDatabase, published: PublishedChanges) -> Iterator[Mirror]:
    """Yield the mirrors in a dataset. Raises SourceUnusable when its records are not about a table of the database."""
    name = published.dataset.name
    place = _described_table(published.tables, name)
    if place is None:
        what = f"{name}: no record at the beginning of bronze names a table of PostgreSQL in JSON"
        raise SourceUnusable(what, "Avro is not compared, nor are records that have expired")
    if place[0] != database.name:
        what = f"{name}: its records are about the database {place[0]}, not {database.name}"
        raise SourceUnusable(what, f"the URL of {place[0]}, with --dataset {name}")
    columns = database.columns_of(*place[1:])
    for gold in published.gold:
        with memory_database(MEMORY) as memory:
            _view(memory, "mirror", published.tables, gold.table, gold.current_rows)
            source = mirrored_table(memory, published.dataset, gold, place[1:], columns)
            yield Mirror(published.dataset, gold, source, *_bounds(memory, source))


def _described_table(tables: PinnedTables, name: str) -> tuple[str, str, str] | None:
    """Return database, schema and table of the records. Raises SourceUnusable when they are about several tables."""
    rows = tables.arrow(f"bronze.{name}").scanner(columns=["value"], filter=pc.field("value").is_valid()).head(LISTED)
    found = set[tuple[str, str, str]]()
    for value in rows["value"].to_pylist():
        with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
            record = json.loads(value)
            source = record.get("payload", record)["source"]
            if source.get("connector") == "postgresql":
                found.add((source["db"], source["schema"], source["table"]))
    if len(found) > 1:
        listed = ", ".join(sorted(f"{schema}.{table}" for _, schema, table in found))
        raise SourceUnusable(f"{name}: its topic has changes of several tables, {listed}", "a dataset for each of them")
    return next(iter(found), None)


def _bounds(memory: Any, source: DatabaseTable) -> tuple[tuple[str, ...], str]:
    """Return where ranges of about RANGE_ROWS rows begin, by the first column of the key, and its type."""
    key = sql_identifier(source.key[0].name)
    ((kind, rows),) = memory.execute(f"select any_value(typeof({key})), count(*) from mirror").fetchall()
    parts = min(MOST_RANGES, -(-rows // RANGE_ROWS))
    if parts < 2 or not source.key[0].form.key:  # noqa: PLR2004
        return (), str(kind)
    numbered = f"select {key} as bound, ntile({parts}) over (order by {key}) as part from mirror"
    begins = f"select distinct min(bound) as bound from ({numbered}) where part > 1 group by part"
    return tuple(
        each for (each,) in memory.execute(f"select bound::varchar from ({begins}) order by bound").fetchall()
    ), kind


def _await_captured(database: SourceDatabase, progress: Progress) -> None:
    """Wait until Kafka has all that the log had. Raises SourceUnusable when the connector does not go on."""
    mark = database.mark()
    progress(f"{database.name}: waiting for the connector of slot {database.slot}")
    try:
        Waiting("the connector", database.confirmed).holds(lambda: database.confirmed() >= mark, POLL_SECONDS)
    except NoProgress as error:
        state = "stands still" if database.is_read() else "is not connected"
        raise SourceUnusable(
            f"the connector of slot {database.slot} {state}, {error.why}", "start it, then audit again"
        ) from error


def _await_published(
    settings: Settings, published: PublishedChanges, open_topic: Callable[[str], Topic]
) -> PinnedTables:
    """Wait until all that the topic has is in the mirrors as published, and return the tables.

    Raises SourceUnusable, also when another release was published meanwhile, whose tables are other ones.
    """
    name, release, mirrors = published.dataset.name, published.dataset.release, published.names
    ends = open_topic(published.dataset.pipeline.topic).ends

    def reached() -> PinnedTables | None:
        found = read_publication(settings, name)
        if found.release != release:
            raise SourceUnusable(f"{name}: release {found.release} took the place of {release}", "audit again")
        is_there = all(found.offsets.get(partition, 0) >= end for partition, end in ends.items())
        is_complete = is_there and batches_behind(found).keys().isdisjoint(mirrors)
        return PinnedTables(tables_of(settings, found)) if is_complete else None

    try:
        return Waiting(name, lambda: read_publication(settings, name).batch).until(reached, POLL_SECONDS)
    except NoProgress as error:
        what = f"{name}: what the topic has is not published, {error.why}"
        raise SourceUnusable(what, "headrace status, then audit again") from error


def _view(memory: Any, name: str, tables: PinnedTables, table: str, where: str = "true") -> None:
    found = tables.table(table)
    view_table(memory, name, found.path, open_dataset(found), where)


LATER_ONLY = "semi join later using (_partition, _offset)"
WITHOUT_LATER = "anti join later using (_partition, _offset)"


class _MirrorComparison:
    """One mirror against its source, in a DuckDB database of its own."""

    def __init__(
        self, source: SourceDatabase, memory: Any, tables: PinnedTables, mirror: Mirror, moment: Moment
    ) -> None:
        self._source, self._memory, self._tables, self._mirror, self._moment = source, memory, tables, mirror, moment
        self._since = 0
        table = mirror.source
        self._keys = [f"k{n}" for n in range(len(table.key))]
        self._key_texts = ", ".join(f"{key.mirror_text} as k{n}" for n, key in enumerate(table.key))
        self._hash = row_hash([each.mirror_text for each in table.compared], MIRROR_DIGEST)
        self._named = ", ".join(self._keys)
        memory.execute(DIALECT)
        _view(memory, "mirror", tables, mirror.gold.table, mirror.gold.current_rows)
        bounds = pa.table({"bound": pa.array(mirror.bounds, pa.string()), "number": range(1, len(mirror.bounds) + 1)})
        memory.register("given_bounds", bounds)
        kind = mirror.bound_type if mirror.bounds else "varchar"
        memory.execute(f"create temp table bounds as select bound::{kind} as bound, number from given_bounds")

    def check(self, counted: Counted, findings: int) -> MirrorCheck:
        return MirrorCheck(
            self._mirror.gold.table,
            self._mirror.source.full_name,
            self._moment.position,
            sum(rows for _, rows, _ in counted),
            len(counted),
            self._since,
            findings,
            self._mirror.source.left_out,
        )

    def findings(self, counted: Counted) -> list[Finding]:
        """Return a finding for each of some rows that differ, and one for the others."""
        here = self._memory.execute(
            "select number, count(*), sum(cast('0x' || substr(hash, 1, 15) as bigint)) "
            f"from (select {self._hash} as hash, {self._numbered()}) group by number"
        ).fetchall()
        given = {number: (rows, total) for number, rows, total in counted}
        found = {number: (rows, int(total)) for number, rows, total in here}
        ranges = sorted(number for number in {*given, *found} if given.get(number) != found.get(number))
        if not ranges:
            return []
        self._find_differing(ranges)
        self._as_of_moment()
        return list(self._named_rows())

    def _numbered(self) -> str:
        """Return SQL for the number of the range, and the rows that have it."""
        if not self._mirror.bounds:
            return "0 as number from mirror as m"
        key = sql_identifier(self._mirror.source.key[0].name)
        return f"coalesce(number, 0) as number from mirror as m asof left join bounds on m.{key} >= bounds.bound"

    def _find_differing(self, ranges: Sequence[int]) -> None:
        """Fill `differing` with the rows of some ranges that are not the same on both sides."""
        memory, names = self._memory, self._keys
        schema = pa.schema([(name, pa.string()) for name in (*names, "hash")])
        memory.execute(f"create temp table source_rows ({', '.join(f'{name} varchar' for name in schema.names)})")
        for rows in self._source.rows(self._mirror.source, self._mirror.bounds, ranges):
            columns = [pa.array(values, pa.string()) for values in zip(*rows, strict=True)]
            memory.register("fetched", pa.Table.from_arrays(columns, schema=schema))
            memory.execute("insert into source_rows from fetched")
        chosen = ", ".join(map(str, ranges))
        hashed = f"select {self._key_texts}, {self._hash} as hash, {self._numbered()}"
        numbered = f"select {self._named}, min(hash) as hash, count(*) as times from ({hashed})"
        grouped = f"{numbered} where number in ({chosen}) group by all"
        memory.execute(
            f"create temp table differing as select {self._named}, s.hash as source_hash, m.hash as mirror_hash, "
            f"coalesce(m.times, 0) as times, false as is_since from source_rows as s full join ({grouped}) as m "
            f"using ({self._named}) where s.hash is distinct from m.hash or m.times > 1"
        )

    def _as_of_moment(self) -> None:
        """Take rows that have changed since the moment as they were then, and forget those that are the same."""
        if not self._find_later():
            return
        memory, gold = self._memory, self._mirror.gold
        everywhere = everywhere_sql(gold, columns_of(memory, "all_silver"))
        rows = f"(select {self._key_texts}, * from all_silver)"
        everything = _number(memory, f"select count(*) from all_silver {LATER_ONLY} where {everywhere}")
        changed = f"select {self._named} from {rows} {LATER_ONLY}"
        condition = "true" if everything else f"({self._named}) in ({changed})"
        memory.execute(f"update differing set is_since = true where {condition}")
        self._since = _number(memory, "select count(*) from differing where is_since") or 0
        memory.execute(
            f"create temp table silver as select * exclude ({self._named}) from {rows} {WITHOUT_LATER} "
            f"where ({self._named}) in (select {self._named} from differing where is_since) or {everywhere}"
        )
        computed = f"select * from ({recompute_sql(gold, columns_of(memory, 'silver'))}) where {gold.current_rows}"
        memory.execute(f"create temp table earlier as {computed}")
        memory.execute(
            "create or replace temp table differing as select d.* replace ("
            "if(is_since, e.hash, mirror_hash) as mirror_hash, "
            "if(is_since, (e.hash is not null)::int, times) as times) "
            f"from differing as d left join (select {self._key_texts}, {self._hash} as hash from earlier) as e "
            f"using ({self._named})"
        )
        memory.execute("delete from differing where source_hash is not distinct from mirror_hash and times <= 1")

    def _find_later(self) -> int:
        """Fill `later` with the places of the changes that the moment does not see; return how many they are."""
        memory, name, settled = self._memory, self._mirror.dataset.name, self._moment.settled
        _view(memory, "all_silver", self._tables, f"silver.{name}")
        first = _number(memory, f"select min(_batch_id) from all_silver where sequence >= {settled}")
        if first is None:
            return 0
        _view(memory, "bronze", self._tables, f"bronze.{name}", f"_batch_id >= {first} and value is not null")
        members = {"operation": "op", "transaction": "source.txId", "position": "source.lsn"}
        read = ", ".join(
            f"coalesce(json ->> '$.payload.{path}', json ->> '$.{path}') as {each}" for each, path in members.items()
        )
        # A record that is no JSON is in bronze too, and in no silver.
        decoded = 'select partition as _partition, "offset" as _offset, try(decode(value)) as text from bronze'
        parsed = f"select _partition, _offset, if(json_valid(text), text, null) as json from ({decoded})"
        transaction, position = (f"try_cast({each} as bigint)" for each in ("transaction", "position"))
        seen = f"{position} > {self._moment.lsn}, {self._moment.later_sql(transaction)}"
        memory.execute(
            "create temp table later as select _partition, _offset from all_silver "
            f"join (select _partition, _offset, {read} from ({parsed})) using (_partition, _offset) "
            f"where {position} >= {settled} and if(operation = 'r', {seen})"
        )
        return _number(memory, "select count(*) from later") or 0

    def _named_rows(self) -> Iterator[Finding]:
        kinds = (
            (FindingKind.overlap, "times > 1", "is {times} times here, once in the source"),
            (FindingKind.missing, "times = 0", "is in the source, not here"),
            (FindingKind.surplus, "times = 1 and source_hash is null", "is here, not in the source"),
            (FindingKind.different, "times = 1 and source_hash is not null", ""),
        )
        for kind, condition, what in kinds:
            chosen = f"from differing where {condition}"
            count = _number(self._memory, f"select count(*) {chosen}") or 0
            order = ", ".join(f"try_cast({name} as hugeint), {name}" for name in self._keys)
            rows = self._memory.execute(
                f"select {self._named}, times, is_since {chosen} order by {order} limit {NAMED}"
            ).fetchall()
            others = self._differences([row[:-2] for row in rows], kind)
            for *key, times, is_since in rows:
                detail = what.format(times=times) or others.get(tuple(key), "differs")
                as_of = f" as of {self._moment.position}" if is_since else ""
                yield Finding(kind, self._mirror.gold.table, 1, f"{self._label(key)} {detail}{as_of}")
            if count > len(rows):
                yield Finding(kind, self._mirror.gold.table, count - len(rows), f"{count - len(rows):,} more rows")

    def _label(self, key: Sequence[str]) -> str:
        return ", ".join(f"{column.name} {value}" for column, value in zip(self._mirror.source.key, key, strict=True))

    def _differences(self, keys: Sequence[tuple[str, ...]], kind: FindingKind) -> dict[tuple[str, ...], str]:
        """Return by key in which columns rows differ, with both values."""
        if kind is not FindingKind.different or not keys:
            return {}
        table, found = self._mirror.source, dict[tuple[str, ...], str]()
        theirs = self._source.values(table, keys)
        texts = ", ".join(each.mirror_text for each in table.compared)
        wanted = ", ".join(f"({', '.join('?' for _ in key)})" for key in keys)
        for relation in ("mirror", "earlier"):
            with suppress(LookupError):
                ours = self._rows_of(relation, texts, wanted, keys)
                for row in ours:
                    key = row[: len(table.key)]
                    differing = [
                        f"{column.name} is {_shown(given)} in the source, {_shown(own)} here"
                        for column, given, own in zip(table.compared, theirs.get(key, row), row, strict=True)
                        if given != own
                    ]
                    if differing:
                        found[key] = ", ".join(differing)
        return found

    def _rows_of(self, relation: str, texts: str, wanted: str, keys: Sequence[tuple[str, ...]]) -> list[Any]:
        there = self._memory.execute("select count(*) from duckdb_tables() where table_name = ?", [relation]).fetchall()
        if relation != "mirror" and not there[0][0]:
            raise LookupError(relation)
        key = ", ".join(each.mirror_text for each in self._mirror.source.key)
        given = [value for each in keys for value in each]
        found: list[Any] = self._memory.execute(
            f"select {texts} from {relation} where ({key}) in ({wanted})", given
        ).fetchall()
        return found


def _number(memory: Any, sql: str) -> int | None:
    found = memory.execute(sql).fetchall()[0][0]
    return None if found is None else int(found)


def _shown(value: str | None) -> str:
    return "null" if value is None else repr(value)
