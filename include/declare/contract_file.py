"""Reads `contract.yaml`: keys, types, and contradictions between them as problems with file, line and key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from include.declare.column_type import MAX_PRECISION, ColumnType, Value
from include.declare.contract import Column, Contract, DeclaredFormat, ServiceLevel
from include.declare.contract_rules import Rule, RuleModel, rule_findings, typed_rule
from include.declare.contract_types import COLUMN_TYPES, LOGICAL, declared_type, default_type
from include.declare.payloads import PayloadFormat
from include.declare.portable_regex import DEFAULT_STRING_BYTES, pattern_fault
from include.declare.yaml_declarations import (
    SECONDS,
    Declared,
    Document,
    Duration,
    Finding,
    InvalidValue,
    Key,
    accepted_names,
    raise_problems,
    shown,
)
from include.ground.optional_packages import import_optional

TYPES_FILE = "column_types.yaml"
EARLIER_DECIMAL = re.compile(r"decimal\([0-9]{1,2},\s*[0-9]{1,2}\)")


def recorded_types(folder: Path) -> Mapping[str, str]:
    """Return by column the physical types that a snapshot recorded."""
    path = folder / TYPES_FILE
    found: Mapping[str, str] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found


def write_types(folder: Path, types: Mapping[str, str], unrecorded: Mapping[str, str]) -> None:
    """Record in a snapshot the types that a column would not have without a record; without any nothing is written."""
    recorded = {name: text for name, text in types.items() if unrecorded.get(name) != text}
    if recorded:
        (folder / TYPES_FILE).write_text(json.dumps(recorded) + "\n", "utf-8")


def earlier_type(logical: str, physical: str) -> str:
    """Return what earlier versions read of a physical type."""
    return physical if logical == "number" and EARLIER_DECIMAL.fullmatch(physical) else ""


SECONDS_BY_LETTER = {unit[0]: seconds for unit, seconds in SECONDS.items()}
MEMBER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,127}")
LONG = range(-(2**63), 2**63)

PEOPLE = frozenset({"id", "description", "tags"})
"""Keys of the standard that are for people and other tools."""


class _Options(Declared):
    minimum: Any = None
    maximum: Any = None
    minLength: int = 0
    maxLength: int = DEFAULT_STRING_BYTES
    pattern: str | None = None
    format: str | None = None


class _TimeBound(Declared):
    property: Literal["future", "past"]
    value: Duration


class _Values(Declared):
    validValues: Annotated[list[str], Field(min_length=1)]


class _ValuesRule(Declared):
    """The standard's own rule for enumerations."""

    ignored: ClassVar[frozenset[str]] = PEOPLE | {"name", "severity", "dimension"}
    type: Literal["library"]
    metric: Literal["invalidValues"]
    mustBe: int
    arguments: _Values


def _known_logical(value: Any) -> Any:
    if isinstance(value, str) and value not in LOGICAL:
        raise ValueError(f"must be one of {', '.join(LOGICAL)}, is {shown(value)}")
    return value


class _Property(Declared):
    ignored: ClassVar[frozenset[str]] = PEOPLE | {"businessName", "examples", "classification"}
    name: str
    logicalType: Annotated[str, BeforeValidator(_known_logical)]
    physicalType: str = ""
    physicalName: str = ""
    required: bool = False
    unique: bool = False
    primaryKey: bool = False
    logicalTypeOptions: _Options = _Options()
    customProperties: list[_TimeBound] = []
    quality: list[Annotated[RuleModel | _ValuesRule, Field(discriminator="type")]] = []


class _Table(Declared):
    """An object of `schema` after the first: a gold table, whose columns pipeline.yaml declares."""

    ignored: ClassVar[frozenset[str]] = PEOPLE | {"physicalType", "physicalName", "dataGranularityDescription"}
    name: str
    logicalType: Any = None
    properties: Any = None
    quality: list[RuleModel] = []


class _Record(_Table):
    """The first object of `schema`."""

    name: Any = None
    logicalType: Literal["object"]
    customProperties: Annotated[list[DeclaredFormat], Field(max_length=1)] = []
    properties: list[_Property] = []


class _Latency(Declared):
    ignored: ClassVar[frozenset[str]] = PEOPLE | {"element", "driver"}
    property: Literal["latency"]
    value: int
    unit: Literal["s", "m", "h", "d"]


class _OtherLevel(Declared, extra="allow"):
    """A promise that no one monitors."""

    property: str


def _kind_of_level(value: Any) -> str:
    return "latency" if isinstance(value, dict) and value.get("property") == "latency" else "other"


class _RecordSchema(dict[str, Any]):
    """The first object of `schema`."""


def _tag_record_schema(value: Any) -> Any:
    is_list = isinstance(value, list) and value and isinstance(value[0], dict)
    return [_RecordSchema(value[0]), *value[1:]] if is_list else value


def _kind(value: Any) -> str:
    return "record" if isinstance(value, _RecordSchema) else "table"


class _ContractFile(Declared):
    ignored: ClassVar[frozenset[str]] = (
        PEOPLE
        | {"apiVersion", "status", "team", "support", "price", "domain"}
        | {"tenant", "dataProduct", "authoritativeDefinitions"}
    )
    kind: Literal["DataContract"]
    name: str
    version: str
    slaProperties: list[
        Annotated[
            Annotated[_Latency, Tag("latency")] | Annotated[_OtherLevel, Tag("other")], Discriminator(_kind_of_level)
        ]
    ] = []
    schema_: Annotated[
        list[Annotated[Annotated[_Record, Tag("record")] | Annotated[_Table, Tag("table")], Discriminator(_kind)]],
        BeforeValidator(_tag_record_schema),
        Field(alias="schema", min_length=1),
    ]

    @property
    def record(self) -> _Record:
        """The first object of `schema`: what a record is."""
        assert isinstance(self.schema_[0], _Record)
        return self.schema_[0]


def load_contract(folder: Path) -> Contract:
    """Return `contract.yaml` of a dataset's folder; raises DeclarationRefused with all problems of the file."""
    document = Document(folder / "contract.yaml")
    contract = read_contract(document)
    raise_problems(document)
    assert contract is not None
    return contract


def released_types(snapshot: Path, *, strict: bool = False) -> Mapping[str, str]:
    """Return the types that a snapshot's tables have; `strict`: those that a release of its folder would have."""
    contract = read_contract(Document(snapshot / "contract.yaml", strict=strict))
    return contract.types if contract else {}


@cache
def has_earlier_types(snapshot: Path) -> bool:
    """Return whether a release of a snapshot's folder would have columns of other types. A snapshot never changes."""
    return released_types(snapshot) != released_types(snapshot, strict=True)


def read_contract(document: Document) -> Contract | None:
    """Return the contract that a document declares; None when it is none, and the document has the problems."""
    file = document.parsed(_ContractFile)
    if file is None:
        return None
    record, tables = file.record, file.schema_[1:]
    base: Key = ("schema", 0, "properties")
    recorded = None if document.strict else recorded_types(document.path.parent)
    columns = [_column(document, (*base, n), found, recorded) for n, found in enumerate(record.properties)]
    types = {column.name: column.kind for column in columns}
    lengths = {column.name: column.max_length for column in columns}
    rules = [
        *(((*base, n, "quality", m), r, types, c.name) for n, c in enumerate(record.properties) for m, r in _models(c)),
        *((("schema", 0, "quality", n), rule, types, None) for n, rule in enumerate(record.quality)),
    ]
    gold = {
        f"gold.{table.name}": _rules(
            document, [(("schema", n, "quality", m), rule, None, None) for m, rule in enumerate(table.quality)]
        )
        for n, table in enumerate(tables, 1)
    }
    levels = [level for level in file.slaProperties if isinstance(level, _Latency)]
    contract = Contract(
        dataset=file.name,
        version=file.version,
        columns=tuple(columns),
        rules=_rules(document, rules, lengths),
        identity=tuple(found.name for found in record.properties if found.primaryKey),
        gold=gold,
        levels=tuple(ServiceLevel(each.property, float(each.value * SECONDS_BY_LETTER[each.unit])) for each in levels),
        format=record.customProperties[0].value if record.customProperties else PayloadFormat.name,
    )
    document.check(_file_findings(file))
    document.check(_member_findings(columns))
    return contract


def _models(found: _Property) -> list[tuple[int, RuleModel]]:
    return [(m, rule) for m, rule in enumerate(found.quality) if isinstance(rule, RuleModel)]


def _rules(
    document: Document,
    models: Iterable[tuple[Key, RuleModel, Mapping[str, ColumnType] | None, str | None]],
    lengths: Mapping[str, int] | None = None,
) -> tuple[Rule, ...]:
    found = []
    for key, model, types, column in models:
        with document.problem_at(*key):
            found.append((key, typed_rule(model, types, column=column, lengths=lengths, strict=document.strict)))
    document.check(rule_findings(found))
    return tuple(rule for _, rule in found)


def _column(document: Document, key: Key, found: _Property, recorded: Mapping[str, str] | None) -> Column:
    """Return a column; each invalid part of it becomes a problem of the document."""
    options, place = found.logicalTypeOptions, (*key, "logicalTypeOptions")
    kind, facts = _type(document, key, found, recorded)
    for bound in ("minimum", "maximum"):
        with document.problem_at(*place, bound):
            facts[bound] = _bound(getattr(options, bound), kind, document.strict)
    values = [rule.arguments.validValues for rule in found.quality if isinstance(rule, _ValuesRule)]
    facts |= {bound.property: bound.value for bound in found.customProperties}
    column = Column(
        name=found.name,
        type=kind.name,
        required=found.required,
        min_length=options.minLength,
        max_length=options.maxLength,
        pattern=options.pattern,
        values=tuple(values[-1]) if values else (),
        physical_name=found.physicalName,
        **facts,
    )
    document.check(_column_findings(column, found, key))
    return column


def _type(
    document: Document, key: Key, found: _Property, recorded: Mapping[str, str] | None
) -> tuple[ColumnType, dict[str, Any]]:
    """Return the type of a column, and a decimal's digits; of a snapshot the type that its tables have."""
    logical, physical, form = found.logicalType, found.physicalType, found.logicalTypeOptions.format
    if recorded is not None:
        physical, form = recorded.get(found.name) or earlier_type(logical, physical), None
    try:
        kind, digits = declared_type(logical, physical, form)
    except InvalidValue as error:
        document.refuse((*key, *error.key), error.why)
        kind, digits = default_type(logical), {}
    return kind, dict(digits)


def _bound(value: Any, kind: ColumnType, strict: bool) -> Value | None:
    """Return a bound as the column's type; raises InvalidValue."""
    if value is None:
        return None
    if "minimum" not in kind.options:
        known = ", ".join(dict.fromkeys(each.logical for each in COLUMN_TYPES.values() if "minimum" in each.options))
        raise InvalidValue(f"a {kind.physical[0]} has no bounds; allowed for {known}")
    return kind.value(value if strict else _as_before(value, kind))


def _as_before(value: Any, kind: ColumnType) -> Any:
    """Return a bound that a snapshot may have from an earlier version: without a zone, or a boolean."""
    if kind.logical == "timestamp" and not _has_zone(value):
        return f"{value}+00:00"
    return int(value) if isinstance(value, bool) else value


def _has_zone(value: str | datetime) -> bool:
    try:
        return (value if isinstance(value, datetime) else datetime.fromisoformat(value)).tzinfo is not None
    except ValueError:
        return True


def _file_findings(file: _ContractFile) -> Iterator[Finding]:
    record, tables = file.record, file.schema_[1:]
    yield from accepted_names(
        (("schema", 0, "properties", n, "name"), found.name) for n, found in enumerate(record.properties)
    )
    yield from accepted_names((("schema", n, "name"), table.name) for n, table in enumerate(tables, 1))
    if not record.properties:
        yield ("schema", 0, "properties"), "must list the columns of the record"
    identity = [found.name for found in record.properties if found.primaryKey]
    for n, found in enumerate(record.properties):
        if found.unique and identity != [found.name]:
            why = "only the primaryKey is unique in silver; for others declare expect_column_values_to_be_unique"
            yield ("schema", 0, "properties", n, "unique"), f"{why}, or leave it out"
    for n, level in enumerate(file.slaProperties):
        if isinstance(level, _Latency) and level.value <= 0:
            yield ("slaProperties", n, "value"), f"must be greater than 0, is {level.value}"


def _member_findings(columns: Sequence[Column]) -> Iterator[Finding]:
    """Yield the field names in the JSON object that are invalid, or that two columns share: case does not count."""
    others: dict[str, Column] = {}
    for n, column in enumerate(columns):
        key: Key = ("schema", 0, "properties", n, "physicalName")
        if column.physical_name and not MEMBER.fullmatch(column.physical_name):
            yield key, f"must be letters, digits, _ and -, beginning with a letter, is {shown(column.physical_name)}"
        other = others.setdefault(column.member.lower(), column)
        if other.name != column.name:
            yield key, f"{column.member!r} is the field {other.member!r} of {other.name}: case is ignored"


def _column_findings(column: Column, found: _Property, key: Key) -> Iterator[Finding]:
    """Yield contradictions between the keys of a column whose types are valid."""
    options = (*key, "logicalTypeOptions")
    given = found.logicalTypeOptions.model_fields_set
    for bound in ("minimum", "maximum"):
        value = getattr(column, bound)
        if isinstance(value, int) and value not in LONG:
            yield (*options, bound), f"must fit in 64 bits, is {value}"
    if column.minimum is not None and column.maximum is not None and column.minimum > column.maximum:  # type: ignore[operator]
        yield (*options, "minimum"), f"{column.minimum} is greater than maximum {column.maximum}"
    for name in sorted(given - {"minimum", "maximum", "format", *column.kind.options}):
        yield (*options, name), f"is for strings only; {column.name} is of type {column.type_text}"
    if column.values and "validValues" not in column.kind.options:
        yield (*key, "quality"), f"validValues is for strings only; {column.name} is of type {column.type_text}"
    for name, length in (("minLength", column.min_length), ("maxLength", column.max_length)):
        if length < 0:
            yield (*options, name), f"must be 0 or more, is {length}"
    if column.min_length > column.max_length:
        yield (*options, "minLength"), f"{column.min_length} is greater than maxLength {column.max_length}"
    if column.pattern is not None and (why := pattern_fault(column.pattern, java_only=True, longest=column.max_length)):
        yield (*options, "pattern"), why
    if not 1 <= column.precision <= MAX_PRECISION or column.scale > column.precision:
        why = f"must be decimal(p,s) with 1 <= p <= {MAX_PRECISION} and s <= p, is {found.physicalType!r}"
        yield (*key, "physicalType"), why
    for each in found.customProperties:
        if each.property not in column.kind.options:
            why = f"{each.property} is for timestamps only; {column.name} is of type {column.type_text}"
            yield (*key, "customProperties"), why
    if found.primaryKey and column.kind.no_key:
        yield (*key, "primaryKey"), f"a {column.type_text} is no identity: {column.kind.no_key}"
    for n, rule in enumerate(found.quality):
        if isinstance(rule, _ValuesRule) and rule.mustBe != 0:
            why = f"must be 0: a record with another value is rejected; is {rule.mustBe}"
            yield (*key, "quality", n, "mustBe"), why


def check_standard(document: Document) -> None:
    """Note violations of the standard. Raises QualityNotInstalled.

    The JSON schema comes first: the package's model accepts unknown keys of inner objects.
    """
    package, jsonschema = import_optional("open_data_contract_standard.model"), import_optional("jsonschema")
    schema = json.loads(package.OpenDataContractStandard.json_schema())
    validator = jsonschema.validators.validator_for(schema)(schema)
    for error in sorted(validator.iter_errors(document.value), key=lambda error: list(map(str, error.absolute_path))):
        document.refuse(tuple(error.absolute_path), error.message.splitlines()[0][:200])
    if document.problems:
        return
    try:
        package.OpenDataContractStandard(**document.value)
    except ValueError as error:
        document.refuse((), " ".join(str(error).split())[:300])
