"""Reads `contract.yaml`: keys, types, and contradictions between them as problems with file, line and key."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from include.declare.column_type import ColumnType
from include.declare.contract import Contract, Limits
from include.declare.contract_columns import PEOPLE, ColumnReader, Property, member_findings
from include.declare.contract_rules import Rule, RuleModel, referenced_columns, rule_findings, typed_rule
from include.declare.payload_format import JsonFormat, PayloadFormat
from include.declare.payloads import DeclaredFormat, FormatOption, declared_format
from include.declare.yaml_declarations import SECONDS, Declared, Document, Finding, Key, accepted_names, raise_problems
from include.ground.optional_packages import import_optional

TYPES_FILE = "column_types.yaml"


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


SECONDS_BY_LETTER = {unit[0]: seconds for unit, seconds in SECONDS.items()}


class _Limit(Declared):
    """A custom property of the record: what it may be at most."""

    property: Literal["maxBytes", "maxDepth", "maxElements"]
    value: int


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
    customProperties: list[Annotated[DeclaredFormat | FormatOption | _Limit, Field(discriminator="property")]] = []
    properties: list[Property] = []

    @property
    def limits(self) -> Limits:
        given = [each for each in self.customProperties if isinstance(each, _Limit)]
        return Limits(**{each.property.removeprefix("max").lower(): each.value for each in given})


class _Latency(Declared):
    ignored: ClassVar[frozenset[str]] = PEOPLE | {"element", "driver"}
    property: Literal["latency"]
    value: int
    unit: Literal["s", "m", "h", "d"]

    def seconds(self) -> float:
        return float(self.value * SECONDS_BY_LETTER[self.unit])


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
    reading = ColumnReader(document, recorded, record.limits)
    columns = tuple(reading.column((*base, n), found, found.name) for n, found in enumerate(record.properties))
    known = [each for column in columns for each in column.single()]
    types = {column.name: column.kind for column in known}
    lengths = {column.name: column.max_length for column in known}
    rules = [
        *((key, rule, types, name) for key, rule, name in reading.rules),
        *((("schema", 0, "quality", n), rule, types, None) for n, rule in enumerate(record.quality)),
    ]
    gold = {
        f"gold.{table.name}": _rules(
            document, [(("schema", n, "quality", m), rule, None, None) for m, rule in enumerate(table.quality)]
        )
        for n, table in enumerate(tables, 1)
    }
    payload: PayloadFormat = JsonFormat()
    with document.problem_at("schema", 0, "customProperties"):
        payload = declared_format(record.customProperties)
    contract = Contract(
        dataset=file.name,
        version=file.version,
        columns=columns,
        rules=_rules(document, rules, lengths),
        identity=tuple(found.name for found in record.properties if found.primaryKey),
        gold=gold,
        latency=min((level.seconds() for level in file.slaProperties if isinstance(level, _Latency)), default=None),
        payload=payload,
        limits=record.limits,
    )
    document.check(_file_findings(file))
    document.check(_nested_findings(contract))
    document.check(_limit_findings(contract))
    document.check(member_findings(base, columns))
    document.check(contract.payload.findings(contract))
    return contract


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


def _file_findings(file: _ContractFile) -> Iterator[Finding]:
    record, tables = file.record, file.schema_[1:]
    yield from accepted_names(
        (("schema", 0, "properties", n, "name"), found.name) for n, found in enumerate(record.properties)
    )
    yield from accepted_names((("schema", n, "name"), table.name) for n, table in enumerate(tables, 1))
    if not record.properties:
        yield ("schema", 0, "properties"), "must list the columns of the record"
    for name, times in Counter(each.property for each in record.customProperties).items():
        if times > 1:
            yield ("schema", 0, "customProperties"), f"must have one {name}"
    identity = [found.name for found in record.properties if found.primaryKey]
    for n, found in enumerate(record.properties):
        if found.unique and identity != [found.name]:
            why = "only the primaryKey is unique in silver; for others declare expect_column_values_to_be_unique"
            yield ("schema", 0, "properties", n, "unique"), f"{why}, or leave it out"
    for n, level in enumerate(file.slaProperties):
        if isinstance(level, _Latency) and level.value <= 0:
            yield ("slaProperties", n, "value"), f"must be greater than 0, is {level.value}"


MOST_DEPTH, MOST_BYTES, MOST_ELEMENTS = 100, 16 << 20, 1_000_000


def _limit_findings(contract: Contract) -> Iterator[Finding]:
    key: Key = ("schema", 0, "customProperties")
    limits = contract.limits
    for name, value, most in (
        ("maxBytes", limits.bytes, MOST_BYTES),
        ("maxDepth", limits.depth, MOST_DEPTH),
        ("maxElements", limits.elements, MOST_ELEMENTS),
    ):
        if not 1 <= value <= most:
            yield key, f"{name} must be from 1 to {most:,}, is {value}"
    for column in contract.columns:
        if (depth := 1 + column.depth) > limits.depth:
            yield key, f"{column.name} reads {depth} objects and arrays deep, and maxDepth is {limits.depth}"


def _nested_findings(contract: Contract) -> Iterator[Finding]:
    """Yield what is not to be had of values inside of others."""
    for rule in contract.rules:
        inside = [name for name in referenced_columns(rule) if "." in name]
        if inside and not rule.validates_records:
            why = f"rule {rule.name} is about whole tables, whose columns do not include {inside[0]}, a field inside"
            remedy = f"give it a column of its own, with physicalName: {inside[0]}; or reject, which validates records"
            yield ("schema", 0, "properties"), f"{why}; {remedy}"


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
