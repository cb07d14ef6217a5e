"""Published tables: the list, one table with chart, first rows and columns, the SQL box, and the bytes on the disk."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from threading import Lock
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from include.declare.column_lineage import TableColumns, dataset_columns, derived_lineage, described_columns
from include.declare.dataset import IsDerived, ReleaseUnknown
from include.declare.derived_dataset import released_derived
from include.declare.gold import Gold
from include.ground.errors import HeadraceError
from include.ground.settings import Settings
from include.ground.sql_quoting import sql_identifier, sql_literal
from include.observe.ended_plans import PartUse, disk_use
from include.observe.watermark import WatermarkStatus
from include.read.limited_query import QueriesBusy, QueryLimits, limited_query
from include.read.plain_values import is_numeric, text_value
from include.read.publication import PublishedTable
from include.read.published_tables import PinnedTables, PublishedVersionGone, TableStats, layer_order, pinned
from include.serve.charts import BarChart, bar_chart, moment, short
from include.serve.datasets import release_of
from include.serve.pages import Console, Shared, asker, page

PREVIEW_ROWS = 50
KEPT = 64
routes = APIRouter()


class VersionMemory:
    """Caches results computed from table versions, which never change."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Any] = {}
        self._lock = Lock()

    def get(self, table: PublishedTable, what: str, compute: Callable[[], Any]) -> Any:
        """Return the cached result of this version; the first call computes it."""
        key = (str(table.path), table.version, what)
        if key not in self._known:
            found = compute()
            with self._lock:
                while len(self._known) >= KEPT:
                    del self._known[next(iter(self._known))]
                self._known[key] = found
        return self._known[key]


def memory_of(console: Console) -> VersionMemory:
    """Return what this server remembers of table versions."""
    found: VersionMemory = console.memory.setdefault("versions", VersionMemory())
    return found


@routes.get("/tables")
def tables(request: Request, console: Shared) -> HTMLResponse:
    """Return the published tables, in the order in which a record meets them."""
    reading, memory = pinned(console.settings), memory_of(console)
    lines = [table_line(reading, name, memory) for name in sorted(reading.tables, key=layer_order)]
    return page(request, "tables", "Tables", "Published tables", lines=lines)


def table_line(
    reading: PinnedTables, name: str, memory: VersionMemory
) -> tuple[PublishedTable, TableStats | None, str]:
    """Return a table and its figures; without them, and why, if it cannot be opened. Raises TableUnknown."""
    found = reading.table(name)
    try:
        return found, memory.get(found, "facts", lambda: reading.facts(name)), ""
    except PublishedVersionGone as error:
        return found, None, error.what


@routes.get("/tables/{name}")
def table(request: Request, console: Shared, name: str, measure: str = "") -> HTMLResponse:
    """Return a table's first rows, and a chart of a gold table. Raises TableUnknown, PublishedVersionGone,
    Terminal."""
    settings, reading, memory = console.settings, pinned(console.settings), memory_of(console)
    found, facts, _ = table_line(reading, name, memory)
    axes: GoldAxes | None = memory.get(found, "axes", lambda: gold_axes(settings, reading, found))
    measures = [ROWS, *axes.measures] if axes else []
    chosen = measure if measure in measures else next(iter(measures[1:]), ROWS)
    first = _preview_sql(name, axes.time if axes else "")
    preview = memory.get(found, "preview", lambda: limited_rows(reading, first, PREVIEW_ROWS))
    watermarks = console.observer.snapshot().watermarks
    status = watermarks.get(found.dataset) if axes and axes.is_closed_by_watermark else None
    return page(
        *(request, "table", "Tables", name),
        table=found,
        facts=facts,
        complete=[] if status is None else [("complete up to (UTC)", moment(status.watermark))],
        waits=table_waits(name, status),
        measures=measures,
        measure=chosen,
        chart=memory.get(found, f"chart {chosen}", lambda: table_chart(reading, name, axes, chosen)) if axes else None,
        preview=preview,
        columns=memory.get(found, "columns", lambda: column_lines(settings, reading, found, preview)),
    )


def table_waits(name: str, found: WatermarkStatus | None) -> list[str]:
    """Return what a gold table waits for, and which partition holds the watermark; nothing unless it is on close."""
    waits = [each.sentence for each in found.waits if each.table == name] if found else []
    return [*waits, found.holder.sentence] if found and found.holder and waits else waits


def _preview_sql(name: str, time_column: str) -> str:
    order = f" order by {sql_identifier(time_column)} desc nulls last" if time_column else ""
    return f"select * from {quoted(name)}{order} limit {PREVIEW_ROWS + 1}"


def column_lines(
    settings: Settings, reading: PinnedTables, found: PublishedTable, preview: QueryRows
) -> list[tuple[str, ...]]:
    """Return name, Arrow type, origin and fields of each column of a table, as its release declares them.

    `preview` has their names and types; the platform's own columns of gold have no origin.
    """
    origins = described_columns(release_columns(settings, reading, found), found.name)
    types = zip(preview.columns, preview.types, strict=True)
    return [(name, kind, *origins.get(name, ("", ""))) for name, kind in types]


def release_columns(settings: Settings, reading: PinnedTables, found: PublishedTable) -> Mapping[str, TableColumns]:
    """Return the origins of the columns of a table's release, and of the releases that it reads.

    Empty without the release's snapshot.
    """
    with suppress(ReleaseUnknown):
        try:
            return dataset_columns(release_of(settings, found.dataset, found.release))
        except IsDerived:
            derived, known = released_derived(settings, found.dataset, found.release), dict[str, TableColumns]()
            for source in sorted(set(derived.pipeline.sources.values()) & set(reading.tables)):
                known |= release_columns(settings, reading, reading.table(source))
            return known | derived_lineage(derived, {name: list(each.columns) for name, each in known.items()})
    return {}


MOST_COLUMNS = 120
UNITS = ("minute", "hour", "day", "month", "year")
LABEL_LENGTHS = {"year": 4, "month": 7, "day": 10, "hour": 13, "minute": 16}
"""Characters of an ISO time that tell one unit from the next."""
ROWS = "rows"


@dataclass(frozen=True)
class GoldAxes:
    """What a gold table can be charted by: its column of time, "" without one; its first key; measures that add up.

    `is_closed_by_watermark`: its rows are of windows or sessions.
    """

    time: str
    key: str
    measures: Sequence[str] = ()
    is_closed_by_watermark: bool = False


def gold_axes(settings: Settings, reading: PinnedTables, found: PublishedTable) -> GoldAxes | None:
    """Return the axes of a gold table as its release declares it; None for other tables, or without a snapshot."""
    layer, _, own = found.name.partition(".")
    if layer != "gold":
        return None
    with suppress(ReleaseUnknown):
        try:
            declared = release_of(settings, found.dataset, found.release)
            return next((_axes(gold) for gold in declared.pipeline.gold if gold.name == own), None)
        except IsDerived:
            derived = released_derived(settings, found.dataset, found.release)
            grains = (gold.grain for gold in derived.pipeline.gold if gold.name == own)
            return next((_derived_axes(grain, reading, found.name) for grain in grains), None)
    return None


def _axes(gold: Gold) -> GoldAxes:
    window, session = gold.window, gold.session
    time_column = window.name if window else session.start if session else ""
    added = [each.name for each in gold.measures if each.declared.merged_by == "sum"]
    return GoldAxes(time_column, gold.grain_columns[0], added, bool(time_column))


def _derived_axes(grain: Sequence[str], reading: PinnedTables, name: str) -> GoldAxes:
    import pyarrow.types as types

    schema = reading.arrow(name).schema
    times = (column for column in grain if types.is_date(kind := schema.field(column).type) or types.is_timestamp(kind))
    return GoldAxes(next(times, ""), grain[0])


def table_chart(reading: PinnedTables, name: str, axes: GoldAxes, measure: str) -> BarChart | None:
    """Return rows or a measure of a gold table over time, or by its first key; None for an empty table.

    Raises as `limited_rows`.
    """
    value = "count(*)" if measure == ROWS else f"sum({sql_identifier(measure)})"
    if axes.time:
        unit = _unit(reading, name, axes.time)
        when = f"date_trunc({sql_literal(unit)}, {sql_identifier(axes.time)})"
        ordered = f"select {when} as at, {value} as total from {quoted(name)} group by 1 order by 1 desc nulls last"
        rows = [(at[: LABEL_LENGTHS[unit]], n) for at, n in _pairs(reading, f"{ordered} limit {MOST_COLUMNS}")[::-1]]
        title = f"{measure} by {unit} ({axes.time})"
    else:
        key = sql_identifier(axes.key)
        most = f"select {key} as at, {value} as total from {quoted(name)} group by 1 order by 2 desc, 1 limit 40"
        rows, title = _pairs(reading, most), f"{measure} by {axes.key}, the most"
    labels, counts = [label for label, _ in rows], [{measure: total} for _, total in rows]
    return bar_chart(title, labels, counts, short) if rows else None


def quoted(name: str) -> str:
    """Return a table's full name, quoted for SQL."""
    layer, _, own = name.partition(".")
    return f"{layer}.{sql_identifier(own)}"


def _unit(reading: PinnedTables, name: str, column: str) -> str:
    """Return the smallest unit of time that gives no more columns than a chart has."""
    at = sql_identifier(column)
    counts = ", ".join(f"date_diff({sql_literal(unit)}, min({at}), max({at}))" for unit in UNITS[:-1])
    (found,) = limited_rows(reading, f"select {counts} from {quoted(name)}").rows
    fitting = (unit for unit, count in zip(UNITS, found, strict=False) if not count or int(count) < MOST_COLUMNS)
    return next(fitting, UNITS[-1])


def _pairs(reading: PinnedTables, query: str) -> list[tuple[str, float]]:
    return [(label, float(total or 0)) for label, total in limited_rows(reading, query).rows]


LIMITS = QueryLimits(seconds=10.0)
MOST_ROWS, MOST_TEXT, MOST_SQL = 500, 1_000, 20_000


@dataclass(frozen=True)
class QueryRows:
    """The first rows of a result as text: `types` are Arrow's, `numbers` the places of columns that are numeric."""

    columns: Sequence[str]
    types: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int]
    is_cut: bool
    seconds: float


@dataclass(frozen=True)
class QueryView:
    """The SQL box: the text, its rows or the problem with its remedy, the tables that exist, the status of HTTP."""

    sql: str
    tables: Sequence[str]
    found: QueryRows | None = None
    problem: str = ""
    remedy: str = ""
    status: int = 200


@routes.get("/sql")
def sql(request: Request, console: Shared, q: str = "") -> HTMLResponse:
    """Return the SQL box with the result of `q`; 400 when it cannot be run, 429 and 503 when too many others run."""
    view = query_view(console.settings, q, asker(request))
    return page(request, "sql", "SQL", "SQL over the published tables", status=view.status, view=view)


def query_view(settings: Settings, query: str, who: str = "") -> QueryView:
    """Return the box, with the result of the text unless it is empty; `who` asks."""
    reading = pinned(settings)
    box = QueryView(query, sorted(reading.tables, key=layer_order))
    if not query.strip():
        return box
    if len(query) > MOST_SQL:
        problem = f"the query has more than {MOST_SQL:,} characters; it was not run"
        return replace(box, sql="", problem=problem, status=400)
    try:
        return replace(box, found=limited_rows(reading, query, who=who))
    except HeadraceError as error:
        status = 400 if not isinstance(error, QueriesBusy) else 429 if error.is_own else 503
        return replace(box, problem=error.what, remedy=error.remedy, status=status)


def limited_rows(reading: PinnedTables, query: str, most: int = MOST_ROWS, who: str = "") -> QueryRows:
    """Run one statement within the limits and return its first rows. Raises as `limited_query`.

    `who` is whose statement it is, "" for those of the console's own pages.
    """
    began = time.monotonic()
    found = limited_query(reading, query, replace(LIMITS, rows=most), who)
    rows = [[_cell(value) for value in row] for row in found.rows]
    numbers = [n for n, kind in enumerate(found.types) if is_numeric(kind)]
    types = [str(kind) for kind in found.types]
    return QueryRows(found.columns, types, rows, numbers, found.is_cut, time.monotonic() - began)


def _cell(value: Any) -> str:
    text = text_value(value)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}…"


PLATFORM = "platform"
KEEP_SECONDS = 60.0
WAIT_SECONDS = 0.15
"""A page waits this long for the first count; then it reports that files are being counted."""


@dataclass
class StorageCount:
    """Counts the files of the state folder in a thread, at most once a minute."""

    settings: Settings
    parts: Sequence[PartUse] = ()
    problem: str = ""
    at: datetime | None = None
    _counted: float = field(default=-KEEP_SECONDS)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None

    def refresh(self) -> None:
        """Begin another count when the last one is old; wait a moment for the first one."""
        with self._lock:
            old = time.monotonic() - self._counted > KEEP_SECONDS
            if old and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._count, name="storage", daemon=True)
                self._thread.start()
            thread = self._thread
        if self.at is None and thread is not None:
            thread.join(WAIT_SECONDS)

    def _count(self) -> None:
        try:
            self.parts, self.problem = disk_use(self.settings), ""
        except (HeadraceError, OSError) as error:
            self.problem = getattr(error, "what", str(error))
        self.at, self._counted = datetime.now(UTC), time.monotonic()

    def by_dataset(self) -> list[tuple[str, int]]:
        found: dict[str, int] = defaultdict(int)
        for each in self.parts:
            found[each.part.dataset or PLATFORM] += each.total
        return sorted(found.items(), key=lambda item: -item[1])


@routes.get("/storage")
def storage(request: Request, console: Shared) -> HTMLResponse:
    """Return the bytes of each part of the state folder."""
    count: StorageCount = console.memory.setdefault("storage", StorageCount(console.settings))
    count.refresh()
    return page(request, "storage", "Storage", "Storage", count=count, platform=PLATFORM)
