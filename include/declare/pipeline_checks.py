"""Checks of what the values of `pipeline.yaml` mean, each alone and with the contract."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

from include.declare.contract import Contract
from include.declare.gold_refresh import refresh_findings
from include.declare.measures import measures_findings
from include.declare.pipeline import (
    AdditiveGold,
    Gold,
    LatestGold,
    Pipeline,
    QueryGold,
    gold_session,
    gold_window,
    latest_keys,
    row_columns,
    time_columns,
    timed_by,
)
from include.declare.windows import session_findings, window_findings
from include.declare.yaml_declarations import NAME, NAME_RULE, Finding, accepted_names, shown
from include.ground.record_coordinates import COORDINATES

TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
MAX_PARTITIONS = 10_000
SHORTEST_RETENTION = timedelta(hours=1)
COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
WORD = re.compile(r"'[^']*'|[A-Za-z_][A-Za-z0-9_]*(?!\w*\s*\()")
"""Texts, which are skipped, and names that are not of functions."""


def pipeline_findings(pipeline: Pipeline) -> Iterator[Finding]:
    """Yield what is wrong with a pipeline, whatever the contract."""
    if not TOPIC.fullmatch(pipeline.topic) or pipeline.topic in (".", "..") or pipeline.topic.startswith("__"):
        rule = "must be 1 to 249 letters, digits, '.', '_' or '-', neither '.' nor '..', and not begin with '__'"
        yield ("topic",), f"{rule}, is {shown(pipeline.topic)}"
    if not 1 <= pipeline.partitions <= MAX_PARTITIONS:
        yield ("partitions",), f"must be from 1 to {MAX_PARTITIONS}, is {pipeline.partitions}"
    if pipeline.retention.versions < SHORTEST_RETENTION:
        yield ("retention", "versions"), "must be at least 1 hour: readers keep the version that they began with"
    if not COLUMN.fullmatch(pipeline.event_time):
        yield ("event_time",), f"must be the name of a column, is {shown(pipeline.event_time)}"
    yield from _column_list_findings(("identity", "columns"), pipeline.identity)
    yield from accepted_names((("gold", gold.name), gold.name) for gold in pipeline.gold)
    for gold in pipeline.gold:
        yield from _gold_findings(gold)
        found = refresh_findings(gold.refresh, timed_by(gold), pipeline.event_time)
        yield from ((("gold", gold.name, *key), why) for key, why in found)
    for table in pipeline.reference:
        place = ("reference", table.name)
        yield from accepted_names([(place, table.name)])
        yield from _column_list_findings((*place, "keys"), table.keys)
        columns = [name for name, _ in table.columns]
        if not set(table.keys) <= set(columns):
            yield (*place, "keys"), f"must be columns of the table ({', '.join(columns)}), are {', '.join(table.keys)}"


def dataset_findings(pipeline: Pipeline, contract: Contract) -> Iterator[Finding]:
    """Yield where a pipeline contradicts the contract."""
    types = {column.name: column for column in contract.columns}
    known = f"is not a column of the contract; columns: {', '.join(types)}"
    for n, name in enumerate(pipeline.identity):
        if name not in types:
            yield ("identity", "columns", n), f"{name!r} {known}"
    for name in time_columns(pipeline):
        if name in types and types[name].type != "timestamp":
            key = _time_key(pipeline, name)
            yield key, f"must be a timestamp; {name} is of type {types[name].type_text}"
    for gold in pipeline.gold:
        for n, name in enumerate(gold.keys):
            if name in types and types[name].kind.no_key:
                why = f"{name} is of type {types[name].type_text}, no key: {types[name].kind.no_key}"
                yield ("gold", gold.name, "keys", n), why
        window = gold_window(gold)
        if window is not None and window.name in (*types, *COORDINATES):
            why = f"{window.name!r} is already a column of silver; give the window a name of its own"
            yield ("gold", gold.name, "window", "as"), why


def contract_findings(pipeline: Pipeline, contract: Contract, name: str) -> Iterator[Finding]:
    """Yield where a contract contradicts the pipeline, or the folder `name`."""
    if contract.dataset != name:
        yield ("name",), f"must be the name of the folder, {name!r}, is {contract.dataset!r}"
    tables = {f"gold.{gold.name}" for gold in pipeline.gold}
    for n, table in enumerate(contract.gold, 1):
        if table not in tables:
            yield ("schema", n, "name"), f"{table} is not a gold table of pipeline.yaml; tables: {', '.join(tables)}"
    needed = {*time_columns(pipeline), *pipeline.identity, *latest_keys(pipeline)}
    for n, column in enumerate(contract.columns):
        if column.name in needed and not column.required:
            why = f"{column.name} is a time, an identity or a key of a latest table, so it needs required: true"
            yield ("schema", 0, "properties", n, "required"), why
    if contract.identity != pipeline.identity:
        declared, expected = (", ".join(names) or "none" for names in (contract.identity, pipeline.identity))
        why = f"columns with primaryKey ({declared}) must be identity.columns of pipeline.yaml ({expected})"
        yield ("schema", 0, "properties"), why


def _gold_findings(gold: Gold) -> Iterator[Finding]:
    place = ("gold", gold.name)
    grain = row_columns(gold)
    required = {AdditiveGold: "measures", LatestGold: "columns", QueryGold: "query"}[type(gold)]
    if not getattr(gold, required):
        yield (*place, required), "is required and missing"
    if gold_window(gold) is None and not gold.keys:
        yield (*place, "keys"), "must name at least one column, or the table needs a window"
    yield from _duplicate_findings((*place, "keys"), gold.keys)
    outputs: list[tuple[str, str]] = []
    if isinstance(gold, LatestGold):
        yield from _column_list_findings((*place, "order_by"), gold.order_by)
        outputs = [("columns", name) for name, _ in gold.columns]
    elif isinstance(gold, AdditiveGold):
        outputs = [("measures", measure.name) for measure in gold.measures]
        yield from (((*place, "measures", *key), why) for key, why in measures_findings(gold.measures))
    yield from (((*place, *key), why) for key, why in _time_findings(gold))
    for part, name in outputs:
        if not NAME.fullmatch(name):
            yield (*place, part, name), f"{NAME_RULE}, is {shown(name)}"
        if name in grain:
            yield (*place, part, name), f"{name!r} is already a column of the table: {', '.join(grain)} name its grain"
    words = {word for word in WORD.findall(gold.partition) if not word.startswith("'")}
    if gold.partition and (words - set(grain) or not words):
        why = f"must be an expression over {', '.join(grain)} alone, so that a row never moves, is {gold.partition!r}"
        yield (*place, "partition"), why


def _time_findings(gold: Gold) -> Iterator[Finding]:
    """Yield what is wrong with the window or the sessions of a gold table."""
    window, session = gold_window(gold), gold_session(gold)
    if session is not None:
        yield from ((("session", *key), why) for key, why in session_findings(session))
        if taken := {session.start, session.end} & set(gold.keys):
            yield ("session",), f"{', '.join(sorted(taken))} is a key as well; choose other names for start and end"
    if window is not None:
        yield from ((("window", *key), why) for key, why in window_findings(window))
        if window.name in gold.keys:
            yield ("window", "as"), f"{window.name!r} is a key as well; give the window another name"
    if session is not None and window is not None:
        yield ("session",), "cannot have a window as well"


def _column_list_findings(key: tuple[str, ...], names: tuple[str, ...]) -> Iterator[Finding]:
    """Yield a finding for an empty list, and for each repeated name."""
    if not names:
        yield key, "must name at least one column"
    yield from _duplicate_findings(key, names)


def _duplicate_findings(key: tuple[str, ...], names: tuple[str, ...]) -> Iterator[Finding]:
    """Yield a finding for each repeated name."""
    for n, name in enumerate(names):
        if name in names[:n]:
            yield (*key, n), f"{name!r} occurs twice"


def _time_key(pipeline: Pipeline, column: str) -> tuple[str, ...]:
    if column == pipeline.event_time:
        return ("event_time",)
    windows = {window.column: (g.name, "window") for g in pipeline.gold if (window := gold_window(g)) is not None}
    sessions = {session.column: (g.name, "session") for g in pipeline.gold if (session := gold_session(g)) is not None}
    return ("gold", *(sessions | windows)[column], "column")
