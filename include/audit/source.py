"""A database's tables as of one moment, for the comparison with their mirror: a transaction on PostgreSQL.

A row is one text, the same in PostgreSQL and in DuckDB, of which both compute the hash. Why the moment is a snapshot
and how it is found in the stream: adr-0004.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql as pg
from psycopg.conninfo import conninfo_to_dict

from include.declare.dataset import Dataset
from include.declare.gold import Gold
from include.ground.errors import Terminal
from include.ground.sql_quoting import sql_identifier

TRANSACTION_IDS = 2**32
"""A record has a transaction's id without its epoch."""
FETCHED = 20_000
"""Rows that are read from the database at once."""
CONNECT_SECONDS = 10
LOCK_SECONDS = 10
"""How long to wait for the lock of a table: who waits for it makes others wait behind it."""


class SourceUnusable(Terminal):
    """The database cannot be compared with its mirror."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; nothing was compared with the source", remedy)


@dataclass(frozen=True)
class TextForm:
    """How a value of a type of gold is one text in DuckDB and in PostgreSQL, for the types of columns that it may have
    there. `{}` stands for the column.
    """

    mirror: str
    source: str
    types: frozenset[str]
    key: str = "{}"
    """The column of the source as what a range of keys begins with."""


def _types(names: str) -> frozenset[str]:
    return frozenset(name.strip() for name in names.split(","))


WHOLE = "smallint, integer, bigint"
MOMENT = "case when isfinite({0}) then (extract(epoch from {0}) * 1000000)::bigint::text else {0}::text end"
NUMBER = TextForm("cast({} as varchar)", "{}::text", _types(WHOLE))
# Zeros at the end say nothing: gold has the scale of the contract, numeric may have none.
EXACT = TextForm(
    r"regexp_replace(regexp_replace(cast({} as varchar), '(\.\d*?)0+$', '\1'), '\.$', '')",
    "trim_scale({}::numeric)::text",
    _types(f"{WHOLE}, numeric"),
)
# Fifteen digits; what is no number is in no JSON, and so in no mirror.
BINARY = TextForm(
    "printf('%.14e', {})",
    "trim(to_char({}::text::float8, '9.99999999999999EEEE'))",
    _types("real, double precision"),
    "",
)
# Its digits, not those of the double that it widens to.
SINGLE = TextForm("printf('%.14e', cast(cast({} as varchar) as double))", BINARY.source, _types("real"), "")
# `format` keeps the blanks at the end of a char(n), as the log has them.
TEXT = TextForm(
    "{}",
    "case when {0} is not null then format('%%s', {0}) end",
    _types('text, character varying, character, "char", name, uuid, json, jsonb, citext, enum'),
    "format('%%s', {}) collate \"C\"",
)
FORMS: Mapping[str, TextForm] = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "BIGINT"), NUMBER),
    "DECIMAL": EXACT,
    "FLOAT": SINGLE,
    "DOUBLE": BINARY,
    "BOOLEAN": TextForm("cast({} as varchar)", "{}::text", _types("boolean"), ""),
    "VARCHAR": TEXT,
    "DATE": TextForm("cast({} as varchar)", "to_char({}, 'YYYY-MM-DD')", _types("date")),
    **dict.fromkeys(
        ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE"),
        TextForm(
            "cast(epoch_us({}) as varchar)",
            MOMENT,
            _types("timestamp without time zone, timestamp with time zone"),
        ),
    ),
}
"""By DuckDB's type, without its precision. A timestamp without a zone is taken for UTC, as Debezium does."""


@dataclass(frozen=True)
class MirroredColumn:
    """A column of gold with that of the source, and how their values are texts."""

    name: str
    source: str
    form: TextForm
    type: str
    """The source's type."""

    @property
    def mirror_text(self) -> str:
        return self.form.mirror.format(sql_identifier(self.name))

    @property
    def source_text(self) -> str:
        return self.form.source.format(self.source_name)

    @property
    def source_name(self) -> str:
        # psycopg reads a percent sign as the beginning of a parameter.
        return sql_identifier(self.source).replace("%", "%%")


def row_hash(texts: Sequence[str], digest: str) -> str:
    """Return the SQL of a row's hash: the texts, each behind its length, so that no two rows give the same."""
    parts = ", ".join(f"coalesce(length({text}) || ':' || {text}, '-')" for text in texts)
    return digest.format(f"concat_ws(',', {parts})")


SOURCE_DIGEST, MIRROR_DIGEST = "md5(convert_to({}, 'UTF8'))", "md5({})"


@dataclass(frozen=True)
class DatabaseTable:
    """A table of the database: `key` are the columns of its mirror's key, `columns` the others that are compared.

    `left_out` says of the others why they are not.
    """

    schema: str
    name: str
    key: tuple[MirroredColumn, ...]
    columns: tuple[MirroredColumn, ...]
    left_out: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def quoted(self) -> str:
        return f"{sql_identifier(self.schema)}.{sql_identifier(self.name)}".replace("%", "%%")

    @property
    def compared(self) -> tuple[MirroredColumn, ...]:
        return (*self.key, *self.columns)

    @property
    def hashed(self) -> str:
        return row_hash([each.source_text for each in self.compared], SOURCE_DIGEST)

    def within(self, bounds: Sequence[Any]) -> str:
        """Return the SQL of the number of a row's range; the first one is before all bounds."""
        key = self.key[0]
        if not bounds:
            return "0"
        kind = "text" if key.form is TEXT else key.type
        return f"width_bucket({key.form.key.format(key.source_name)}, %(bounds)s::{kind}[])"


PLAIN = re.compile(r"`?(\w+)`?")


def mirrored_table(
    memory: Any, dataset: Dataset, gold: Gold, place: tuple[str, str], columns: Mapping[str, str]
) -> DatabaseTable:
    """Return the table that gold, the view `mirror`, has the rows of; `columns` are those of the source.

    Raises SourceUnusable when a column of its key cannot be compared.
    """
    types = {name: kind for name, kind, *_ in memory.execute("describe mirror").fetchall()}
    members = {column.name: column.path for column in dataset.contract.columns}

    compared, left_out = list[MirroredColumn](), list[str]()
    for name, sql in (*((key, key) for key in gold.keys), *gold.columns):
        source = _column_of_row(members, sql)
        form, kind = FORMS.get(types[name].partition("(")[0]), columns.get(source, "")
        if not source:
            left_out.append(f"{name} (is {sql})")
        elif not kind:
            left_out.append(f"{name} (no column of the source)")
        elif form is None or kind not in form.types:
            left_out.append(f"{name} ({kind} in the source, {types[name].lower()} here)")
        else:
            compared.append(MirroredColumn(name, source, form, kind))
    keys = tuple(each for each in compared if each.name in gold.keys)
    if len(keys) < len(gold.keys):
        raise SourceUnusable(
            f"{gold.table}: its key cannot be compared: {left_out[0]}", "keys that are columns of the row"
        )
    if gold.current_rows == "true":
        used = {each.source for each in compared}
        left_out += [f"{each} (not in {gold.table})" for each in columns if each not in used]
    return DatabaseTable(*place, keys, tuple(compared[len(keys) :]), tuple(left_out))


def _column_of_row(members: Mapping[str, Sequence[str]], sql: str) -> str:
    """Return the column of the source that an expression of gold is; "" of another expression."""
    plain = PLAIN.fullmatch(sql.strip())
    *inside, last = members.get(plain[1], ("",)) if plain else ("",)
    return last if inside == ["after"] else ""


@dataclass(frozen=True)
class Moment:
    """A moment of the database: `lsn` is not before any change that is visible. `open`: transactions between `oldest`
    and `next` that had not ended. What lies before `settled` in the log belongs to transactions that had ended.
    """

    lsn: int
    oldest: int
    next: int
    open: tuple[int, ...]
    settled: int

    @property
    def position(self) -> str:
        """The LSN as PostgreSQL writes it."""
        return f"{self.lsn >> 32:X}/{self.lsn & 0xFFFFFFFF:X}"

    def later_sql(self, transaction: str) -> str:
        """Return DuckDB's condition of a transaction whose changes are not visible, given its id without the epoch."""
        # The distance from the oldest open one, forward or back, whichever is shorter.
        ids, half = TRANSACTION_IDS, TRANSACTION_IDS // 2
        distance = f"(({transaction} - {self.oldest % ids} + {half + ids}) % {ids} - {half})"
        still_open = [f"{distance} = {each - self.oldest}" for each in self.open]
        return f"({' or '.join([f'{distance} >= {self.next - self.oldest}', *still_open])})"


class SourceDatabase:
    """A database whose log a slot sends. Reads: tables in one snapshot. Writes: a message into the log, of no table."""

    def __init__(self, url: str, slot: str = "") -> None:
        """Connect. Raises SourceUnusable without a connection, and without the slot."""
        given = _parameters(url)
        with ExitStack() as opened:
            self._snapshot = opened.enter_context(closing(_connected(given)))
            self._now = opened.enter_context(closing(_connected(given)))
            self._now.autocommit = True
            self._snapshot.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            self._snapshot.read_only = True
            self.slot = slot or self._only_slot()
            self.confirmed()
            self.name = str(self._ask("select current_database()")[0][0])
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Close the connections, and with them the snapshot and its locks."""
        self._opened.close()

    def columns_of(self, schema: str, name: str) -> dict[str, str]:
        """Return the columns of a table with their types; an enumeration's is `enum`. Raises SourceUnusable."""
        found = self._ask(
            "select attname, case when typtype = 'e' then 'enum' else format_type(atttypid, null) end "
            "from pg_attribute join pg_type on pg_type.oid = atttypid "
            "where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped order by attnum",
            (f"{sql_identifier(schema)}.{sql_identifier(name)}",),
        )
        if not found:
            raise SourceUnusable(f"the source {self.name} has no table {schema}.{name}", "the URL of its database")
        return dict(found)

    def moment(self, tables: Sequence[DatabaseTable]) -> Moment:
        """Begin the transaction that sees one moment, and return the moment.

        The tables are locked against what no snapshot survives: a truncation, another type of a column.
        """
        settled = self._position("restart_lsn")
        with _readable(self.name):
            self._snapshot.execute(f"set local lock_timeout = '{LOCK_SECONDS}s'".encode())
            for table in tables:
                self._snapshot.execute(
                    pg.SQL("lock table {} in access share mode").format(pg.Identifier(table.schema, table.name))
                )
            snapshot, lsn = self._snapshot.execute(
                "select pg_current_snapshot()::text, (pg_current_wal_insert_lsn() - '0/0')::bigint"
            ).fetchall()[0]
        oldest, following, still_open = snapshot.split(":")
        return Moment(
            lsn, int(oldest), int(following), tuple(int(each) for each in still_open.split(",") if each), settled
        )

    def mark(self) -> int:
        """Write a message behind all that has happened, and return its LSN: the slot passes it also in quiet."""
        return int(self._ask("select (pg_logical_emit_message(false, 'headrace', 'audit') - '0/0')::bigint")[0][0])

    def confirmed(self) -> int:
        """Return up to which LSN the connector has sent everything, and Kafka has it."""
        return self._position("confirmed_flush_lsn")

    def is_read(self) -> bool:
        found = self._ask("select active from pg_replication_slots where slot_name = %s", (self.slot,))
        return bool(found and found[0][0])

    def ranges(self, table: DatabaseTable, bounds: Sequence[Any]) -> list[tuple[int, int, int]]:
        """Return of each range of keys its number, its rows and the sum of their hashes."""
        number = f"coalesce({table.within(bounds)}, 0)"
        hashed = f"sum(('x' || substr({table.hashed}, 1, 15))::bit(60)::bigint)"
        text = f"select {number}, count(*), {hashed} from {table.quoted} group by 1"
        with _readable(self.name):
            found = self._snapshot.execute(text.encode(), {"bounds": list(bounds)}).fetchall()
        return [(each, rows, int(total)) for each, rows, total in found]

    def rows(
        self, table: DatabaseTable, bounds: Sequence[Any], ranges: Sequence[int]
    ) -> Iterator[list[tuple[str, ...]]]:
        """Yield the keys, as texts, and hashes of the rows in some ranges."""
        chosen = [*(key.source_text for key in table.key), table.hashed]
        number = f"coalesce({table.within(bounds)}, 0)"
        yield from self._selected(
            table, chosen, f"{number} = any(%(ranges)s)", {"bounds": list(bounds), "ranges": list(ranges)}
        )

    def values(self, table: DatabaseTable, keys: Sequence[Sequence[str]]) -> Mapping[tuple[str, ...], tuple[str, ...]]:
        """Return by key the texts of the compared columns of some rows."""
        named = f"({', '.join(key.source_text for key in table.key)})"
        wanted = {f"k{n}": [key[n] for key in keys] for n in range(len(table.key))}
        listed = ", ".join(f"%({name})s::text[]" for name in wanted)
        chosen, width = [each.source_text for each in table.compared], len(table.key)
        found = self._selected(table, chosen, f"{named} in (select * from unnest({listed}))", wanted)
        return {row[:width]: row for rows in found for row in rows}

    def _selected(
        self, table: DatabaseTable, columns: Sequence[str], condition: str, given: Mapping[str, Any]
    ) -> Iterator[list[tuple[str, ...]]]:
        text = f"select {', '.join(columns)} from {table.quoted} where {condition}"
        with _readable(self.name), self._snapshot.cursor("headrace_audit") as cursor:
            cursor.execute(text.encode(), given)
            while rows := cursor.fetchmany(FETCHED):
                yield rows

    def _only_slot(self) -> str:
        """Return the slot of the database. Raises SourceUnusable without one, and when there are several."""
        found = self._ask(
            "select slot_name from pg_replication_slots where slot_type = 'logical' and database = current_database()"
        )
        if len(found) == 1:
            return str(found[0][0])
        if not found:
            raise SourceUnusable(
                "the source has no logical replication slot: no connector reads it", "start the connector"
            )
        names = ", ".join(sorted(name for (name,) in found))
        raise SourceUnusable(
            f"the source has several replication slots: {names}", "headrace audit --source URL --slot NAME"
        )

    def _position(self, column: str) -> int:
        text = f"select ({column} - '0/0')::bigint from pg_replication_slots where slot_name = %s"
        found = self._ask(text, (self.slot,))
        if not found:
            raise SourceUnusable(f"the source has no replication slot {self.slot!r}", "--slot names the connector's")
        return int(found[0][0] or 0)

    def _ask(self, text: str, given: Sequence[Any] = ()) -> list[Any]:
        with _readable("the source"):
            return self._now.execute(text.encode(), given or None).fetchall()


URL = re.compile(r"postgres(?:ql)?(?:\+psycopg)?://(?P<rest>.*)", re.DOTALL)
# libpq would take a part of such a password for the host or the database, and show it.
BEHIND_PASSWORD = re.compile(r"[^@]*@[^@]*@|[^@/]*/[^?]*@", re.DOTALL)


def _parameters(url: str) -> Mapping[str, Any]:
    """Return what a URL says. Raises SourceUnusable, without any part of it, when it cannot be read."""
    found = URL.fullmatch(url)
    if found is None:
        raise SourceUnusable(
            "the source is no URL of a PostgreSQL database", "--source postgresql://user@host:port/database"
        )
    given: Mapping[str, Any] = {}
    if not BEHIND_PASSWORD.match(found["rest"]):
        with suppress(psycopg.ProgrammingError):
            given = conninfo_to_dict(f"postgresql://{found['rest']}")
    if not given or not re.fullmatch(r"[0-9,]*", str(given.get("port", ""))):
        raise SourceUnusable(
            "the URL of the source cannot be read (it is not shown: it may have a password)",
            "the password in ~/.pgpass or PGPASSWORD; in the URL its @ : / ? # and % are %40 %3A %2F %3F %23 and %25",
        )
    return given


def _connected(given: Mapping[str, Any]) -> psycopg.Connection[Any]:
    own = {"connect_timeout": CONNECT_SECONDS, "application_name": "headrace audit"}
    with _readable("the source"):
        return psycopg.connect(**{**given, **own})


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Raise what a database answers instead of rows as SourceUnusable."""
    try:
        yield
    except psycopg.errors.LockNotAvailable as error:
        raise SourceUnusable(
            f"{name}: another transaction has locked a table for more than {LOCK_SECONDS} s",
            "audit again when it has ended",
        ) from error
    except psycopg.Error as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise SourceUnusable(
            f"{name} did not answer: {said[0]}", "check the URL, and the rights of its user"
        ) from error
