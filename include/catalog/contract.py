"""The contract of a dataset: what one record must look like (Open Data Contract Standard v3)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from include.catalog.contract_rules import Rule, read_rules, validate_names
from include.catalog.yaml_declarations import DeclarationRefused, Node, load_yaml, parsed_duration

TYPES = {"string", "integer", "number", "timestamp", "boolean"}
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
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
class ServiceLevel:
    """What readers are promised: `latency`, the most seconds between a record's Kafka time and its publication."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Contract:
    """All that a dataset promises.

    `columns` and `identity` (the columns whose absence is `missing_id`): of one record. `rules`: of records and of
    silver as a whole. `gold`: of gold tables, by full name. `levels`: of the service.
    """

    dataset: str
    version: str
    columns: tuple[Column, ...]
    rules: tuple[Rule, ...]
    identity: tuple[str, ...]
    gold: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)
    levels: tuple[ServiceLevel, ...] = ()

    @property
    def record_rules(self) -> tuple[Rule, ...]:
        """The rules that judge each record as it comes."""
        return tuple(rule for rule in self.rules if rule.validates_records)

    def checks(self, table: str) -> tuple[Rule, ...]:
        """Return the rules that are asked of a table as a whole; `table` is a full name (`gold.carrier_hours`)."""
        if table == f"silver.{self.dataset}":
            return tuple(rule for rule in self.rules if not rule.validates_records)
        return self.gold.get(table, ())


def load_contract(folder: Path) -> Contract:
    """Read `contract.yaml` of a dataset's folder; DeclarationRefused names the first key that is wrong."""
    root = load_yaml(folder / "contract.yaml")
    root.ignore("apiVersion", "status", "description", "tags", "team", "support", "price", "domain")
    root.one_of("kind", ["DataContract"])
    root.ignore("id", "tenant", "dataProduct", "authoritativeDefinitions")
    name, version = root.take("name", str), root.take("version", str)
    levels = tuple(level for node in root.nodes("slaProperties") if (level := _service_level(node)))
    schemas = root.nodes("schema")
    if not schemas:
        raise DeclarationRefused(f"{root.place}.schema", "must have the record as its first object, has none")
    root.finish()
    gold = dict(_gold_table(schema) for schema in schemas[1:])
    return replace(_contract(schemas[0], name, version), gold=gold, levels=levels)


def _contract(schema: Node, name: str, version: str) -> Contract:
    _ignore_words(schema)
    schema.one_of("logicalType", ["object"])
    primary: list[str] = []
    own: list[tuple[str, list[Node]]] = []
    columns = tuple(_column(node, primary, own) for node in schema.nodes("properties"))
    types = {column.name: column.type for column in columns}
    rules = [rule for column, nodes in own for rule in read_rules(nodes, types, column=column)]
    rules += read_rules(schema.nodes("quality"), types)
    validate_names(rules, schema.place)
    schema.finish()
    return Contract(name, version, columns, tuple(rules), tuple(primary))


def _gold_table(schema: Node) -> tuple[str, tuple[Rule, ...]]:
    """A gold table's rules; its columns are what pipeline.yaml declares, so here they are for people."""
    name = schema.take("name", str)
    _ignore_words(schema)
    schema.ignore("properties", "logicalType")
    rules = read_rules(schema.nodes("quality"), {}, gold=True)
    validate_names(rules, schema.place)
    schema.finish()
    return f"gold.{name}", rules


def _ignore_words(schema: Node) -> None:
    schema.ignore("id", "name", "physicalType", "description", "physicalName", "tags", "dataGranularityDescription")


def _service_level(node: Node) -> ServiceLevel | None:
    """Latency is watched; whatever else is promised is for people."""
    name = node.take("property", str)
    if name != "latency":
        return None
    value, unit = node.take("value", int), node.one_of("unit", SECONDS)
    node.ignore("id", "element", "driver", "description")
    node.finish()
    return ServiceLevel(name, float(value * SECONDS[unit]))


def _column(node: Node, primary: list[str], own: list[tuple[str, list[Node]]]) -> Column:
    """Return a column; its Great Expectations rules, which may look at other columns, go to `own`."""
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
    rules = node.nodes("quality")
    own.append((name, [rule for rule in rules if rule.peek("type") == "custom"]))
    for rule in [rule for rule in rules if rule.peek("type") != "custom"]:
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
    for key, fact in (("minLength", "min_length"), ("maxLength", "max_length")):
        if key in node:
            facts[fact] = node.take(key, int)
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
