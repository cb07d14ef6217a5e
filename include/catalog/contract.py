"""The contract of a dataset: what one record must look like (Open Data Contract Standard v3)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from include.catalog.reading_yaml import DeclarationRefused, Node, load_yaml, parsed_duration

TYPES = {"string", "integer", "number", "timestamp", "boolean"}
CLOCK_SKEW = timedelta(minutes=10)
DEFAULT_STRING_BYTES = 65_536
FIRST_SUPPORTED_TIME = datetime(1, 1, 2, tzinfo=UTC)
DECIMAL = re.compile(r"^decimal\((\d{1,2}),\s*(\d{1,2})\)$")
NAME = re.compile(r"^[a-z][a-z0-9_]{0,62}$")


@dataclass(frozen=True)
class Column:
    """One field of the record. `minimum`/`maximum` are of the column's type; lengths are bytes of UTF-8."""

    name: str
    type: str
    required: bool = False
    minimum: int | Decimal | datetime | None = None
    maximum: int | Decimal | datetime | None = None
    min_length: int = 0
    max_length: int = DEFAULT_STRING_BYTES
    pattern: str | None = None
    values: tuple[str, ...] = ()
    precision: int = 18
    scale: int = 6
    future: timedelta = CLOCK_SKEW
    """How far after the record's Kafka timestamp a time may lie."""


@dataclass(frozen=True)
class RowRule:
    """A condition over several columns; the record is rejected with `name` unless `holds` is true."""

    name: str
    column: str
    holds: str


@dataclass(frozen=True)
class Contract:
    """All that one record of a dataset must keep; `identity` are the columns whose absence is `missing_id`."""

    dataset: str
    version: str
    columns: tuple[Column, ...]
    rules: tuple[RowRule, ...]
    identity: tuple[str, ...]


def load_contract(folder: Path) -> Contract:
    """Read `contract.yaml` of a dataset's folder; DeclarationRefused names the first key that is wrong."""
    root = load_yaml(folder / "contract.yaml")
    root.ignore("apiVersion", "status", "description", "tags", "team", "slaProperties", "support", "price", "domain")
    root.one_of("kind", ["DataContract"])
    root.ignore("id", "tenant", "dataProduct", "authoritativeDefinitions")
    name, version = root.take("name", str), root.take("version", str)
    schemas = root.nodes("schema")
    if len(schemas) != 1:
        raise DeclarationRefused(f"{root.place}.schema", f"must have one object, has {len(schemas)}")
    root.finish()
    return _contract(schemas[0], name, version)


def _contract(schema: Node, name: str, version: str) -> Contract:
    schema.ignore("name", "physicalType", "description", "physicalName", "tags", "dataGranularityDescription")
    schema.one_of("logicalType", ["object"])
    primary: list[str] = []
    columns = tuple(_column(node, primary) for node in schema.nodes("properties"))
    rules = tuple(_row_rule(node, {c.name for c in columns}) for node in schema.nodes("quality"))
    schema.finish()
    return Contract(name, version, columns, rules, tuple(primary))


def _column(node: Node, primary: list[str]) -> Column:
    name = node.take("name", str)
    if not NAME.match(name):
        raise DeclarationRefused(f"{node.place}.name", f"must be lower case letters, digits and _, is {name!r}")
    kind = node.one_of("logicalType", TYPES)
    facts: dict[str, Any] = {"required": node.maybe("required", bool, False)}
    if node.maybe("primaryKey", bool, False):
        primary.append(name)
    facts |= _physical(node)
    if "logicalTypeOptions" in node:
        facts |= _options(node.node("logicalTypeOptions"), kind)
    for prop in node.nodes("customProperties"):
        facts[prop.one_of("property", ["future"])] = parsed_duration(prop.take("value", str), prop.place)
    for rule in node.nodes("quality"):
        facts["values"] = _valid_values(rule)
    node.ignore("unique", "description", "businessName", "examples", "classification", "tags")
    node.finish()
    return Column(name, kind, **facts)


def _physical(node: Node) -> dict[str, Any]:
    text = node.maybe("physicalType", str, "")
    match = DECIMAL.match(text)
    if text.startswith("decimal") and not match:
        raise DeclarationRefused(f"{node.place}.physicalType", f"must be decimal(p,s), is {text!r}")
    return {"precision": int(match[1]), "scale": int(match[2])} if match else {}


def _options(node: Node, kind: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for key in ("minimum", "maximum"):
        if key in node:
            facts[key] = _bound(node.take(key, object), kind, f"{node.place}.{key}")
    for key, field in (("minLength", "min_length"), ("maxLength", "max_length")):
        if key in node:
            facts[field] = node.take(key, int)
    if "pattern" in node:
        facts["pattern"] = node.take("pattern", str)
    node.finish()
    return facts


def _bound(value: object, kind: str, place: str) -> int | Decimal | datetime:
    if kind == "timestamp" and isinstance(value, str):
        return datetime.fromisoformat(value).astimezone(UTC)
    if kind == "integer" and isinstance(value, int):
        return value
    if kind == "number" and isinstance(value, int | float):
        return Decimal(str(value))
    raise DeclarationRefused(place, f"must be a {kind}, is {value!r}")


def _valid_values(node: Node) -> tuple[str, ...]:
    node.one_of("type", ["library"])
    node.one_of("metric", ["invalidValues"])
    node.take("mustBe", int)
    arguments = node.node("arguments")
    values = arguments.strings("validValues")
    arguments.finish()
    node.ignore("name", "description", "severity", "dimension")
    node.finish()
    return values


def _row_rule(node: Node, columns: set[str]) -> RowRule:
    node.one_of("type", ["custom"])
    node.one_of("engine", ["headrace"])
    name, body = node.take("name", str), node.node("implementation")
    column, holds = body.take("column", str), body.take("holds", str)
    if column not in columns:
        raise DeclarationRefused(f"{body.place}.column", f"{column!r} is no column of the contract")
    body.finish()
    node.ignore("description", "severity", "dimension")
    node.finish()
    return RowRule(name, column, holds)
