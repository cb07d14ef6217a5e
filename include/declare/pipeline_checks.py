"""Checks of what the values of `pipeline.yaml` mean, each alone and with the contract."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

from include.declare.contract import Contract
from include.declare.gold import EVERY_RUN, listed_once
from include.declare.pipeline import Pipeline
from include.declare.yaml_declarations import Finding, accepted_names, shown
from include.ground.record_coordinates import COORDINATES

TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
MAX_PARTITIONS = 10_000
SHORTEST_RETENTION = timedelta(hours=1)
COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


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
    yield from listed_once(("identity", "columns"), pipeline.identity)
    yield from accepted_names((("gold", gold.name), gold.name) for gold in pipeline.gold)
    for gold in pipeline.gold:
        yield from ((("gold", gold.name, *key), why) for key, why in gold.findings(pipeline.event_time))
    for table in pipeline.reference:
        place = ("reference", table.name)
        yield from accepted_names([(place, table.name)])
        yield from listed_once((*place, "keys"), table.keys)
        columns = [name for name, _ in table.columns]
        if not set(table.keys) <= set(columns):
            yield (*place, "keys"), f"must be columns of the table ({', '.join(columns)}), are {', '.join(table.keys)}"


def dataset_findings(pipeline: Pipeline, contract: Contract) -> Iterator[Finding]:
    types = {column.name: column for column in contract.columns}
    known = f"is not a column of the contract; columns: {', '.join(types)}"
    for n, name in enumerate(pipeline.identity):
        if name not in types:
            yield ("identity", "columns", n), f"{name!r} {known}"
    for name in pipeline.time_columns:
        if name in types and types[name].type != "timestamp":
            key = _time_key(pipeline, name)
            yield key, f"must be a timestamp; {name} is of type {types[name].type_text}"
    for gold in pipeline.gold:
        for n, name in enumerate(gold.keys):
            if name in types and types[name].kind.no_key:
                why = f"{name} is of type {types[name].type_text}, no key: {types[name].kind.no_key}"
                yield ("gold", gold.name, "keys", n), why
        window = gold.window
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
    needed = {pipeline.event_time, *pipeline.identity}.union(*(gold.required_columns for gold in pipeline.gold))
    for n, column in enumerate(contract.columns):
        if column.name in needed and not column.required:
            why = f"{column.name} is a time, an identity or a key of a latest table, so it needs required: true"
            yield ("schema", 0, "properties", n, "required"), why
    if contract.identity != pipeline.identity:
        declared, expected = (", ".join(names) or "none" for names in (contract.identity, pipeline.identity))
        why = f"columns with primaryKey ({declared}) must be identity.columns of pipeline.yaml ({expected})"
        yield ("schema", 0, "properties"), why


def _time_key(pipeline: Pipeline, column: str) -> tuple[str, ...]:
    if column == pipeline.event_time:
        return ("event_time",)
    timed = {gold.timed_by.column: (gold.name, gold.timed_by.part) for gold in pipeline.gold if gold.timed_by}
    return ("gold", *timed[column], "column")


def retention_findings(pipeline: Pipeline, contract: Contract) -> Iterator[Finding]:
    """Yield the ages of expiry that would change how later records are classified.

    A record that arrives finds its duplicates in silver. Silver may therefore expire only rows that no later record can
    duplicate: the contract's `past` and `future` limit the distance between event time and arrival.
    """
    retention, key = pipeline.retention, ("retention", "silver")
    if retention.bronze is not None and retention.bronze < SHORTEST_RETENTION:
        yield ("retention", "bronze"), "must be at least 1 hour: the stream reads its records from bronze"
    if retention.silver is None:
        return
    for gold in pipeline.gold:
        if gold.recomputes or gold.refresh != EVERY_RUN:
            yield key, f"gold.{gold.name} computes rows from silver again, so silver must keep all records"
    time = next((column for column in contract.columns if column.name == pipeline.event_time), None)
    if time is None or time.past is None:
        remedy = f"customProperties: [{{property: past, value: 30 days}}] on {pipeline.event_time} in contract.yaml"
        yield key, f"needs a limit of how old a record may be when it arrives: {remedy}"
    elif retention.silver < (longest := time.past + time.future + pipeline.horizon):
        why = "a later record may still be a duplicate: past and future of the event time, and the horizon"
        yield key, f"must be at least {_duration_text(longest)} ({why})"


def _duration_text(length: timedelta) -> str:
    minutes = -(-length // timedelta(minutes=1))
    for name, size in (("days", 1440), ("hours", 60)):
        if minutes % size == 0:
            return f"{minutes // size} {name}"
    return f"{minutes} minutes"
