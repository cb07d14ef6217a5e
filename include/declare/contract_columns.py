"""Reads the columns of a contract, with all that is inside of them: keys, types, and contradictions between them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from include.declare.column_type import MAX_PRECISION, ColumnType, Value
from include.declare.contract import MEMBER, Column, Limits, member_path
from include.declare.contract_rules import RuleModel
from include.declare.contract_types import COLUMN_TYPES, DECIMAL, LOGICAL, declared_type, default_type
from include.declare.portable_regex import DEFAULT_STRING_BYTES, pattern_fault
from include.declare.yaml_declarations import (
    Declared,
    Document,
    Duration,
    Finding,
    InvalidValue,
    Key,
    accepted_names,
    shown,
)

EARLIER_DECIMAL = re.compile(r"decimal\([0-9]{1,2},\s*[0-9]{1,2}\)")


def earlier_type(logical: str, physical: str) -> str:
    """Return what earlier versions read of a physical type."""
    return physical if logical == "number" and EARLIER_DECIMAL.fullmatch(physical) else ""


LONG = range(-(2**63), 2**63)

PEOPLE = frozenset({"id", "description", "tags"})
"""Keys of the standard that are for people and other tools."""


class Options(Declared):
    """`logicalTypeOptions`."""

    minimum: Any = None
    maximum: Any = None
    minLength: int = 0
    maxLength: int = DEFAULT_STRING_BYTES
    minItems: int = 0
    maxItems: int | None = None
    minProperties: int = 0
    maxProperties: int | None = None
    pattern: str | None = None
    format: str | None = None


class TimeBound(Declared):
    """How far a time may be from the record's arrival."""

    property: Literal["future", "past"]
    value: Duration


class Variant(Declared):
    """The part is kept as JSON."""

    property: Literal["variant"]
    value: Literal[True]


def _named_type(value: Any) -> Any:
    """Return what a map's values are by the name of a type: a logical or a physical one."""
    if not isinstance(value, str):
        return value
    names = {each: kind.logical for kind in COLUMN_TYPES.values() for each in (*kind.physical, kind.logical)}
    logical = names.get(value, "number" if DECIMAL.fullmatch(value.lower()) else value)
    return {"logicalType": logical, "physicalType": "" if value in LOGICAL else value}


class MapValues(Declared):
    """The object has any keys; `value` is a type's name, or what each value is."""

    property: Literal["additionalProperties"]
    value: Annotated[Element, BeforeValidator(_named_type)]


class Values(Declared):
    """The values of an enumeration."""

    validValues: Annotated[list[str], Field(min_length=1)]


class ValuesRule(Declared):
    """The standard's own rule for enumerations."""

    ignored: ClassVar[frozenset[str]] = PEOPLE | {"name", "severity", "dimension"}
    type: Literal["library"]
    metric: Literal["invalidValues"]
    mustBe: int
    arguments: Values


def _known_logical(value: Any) -> Any:
    if isinstance(value, str) and value not in LOGICAL:
        raise ValueError(f"must be one of {', '.join(LOGICAL)}, is {shown(value)}")
    return value


class Element(Declared):
    """An element of an array, or a value of a map."""

    ignored: ClassVar[frozenset[str]] = PEOPLE | {"businessName", "examples", "classification"}
    logicalType: Annotated[str, BeforeValidator(_known_logical)]
    physicalType: str = ""
    required: bool = False
    logicalTypeOptions: Options = Options()
    customProperties: list[Annotated[TimeBound | Variant | MapValues, Field(discriminator="property")]] = []
    quality: list[Annotated[RuleModel | ValuesRule, Field(discriminator="type")]] = []
    properties: list[Property] = []
    items: Element | None = None

    @property
    def bounds(self) -> list[TimeBound]:
        return [each for each in self.customProperties if isinstance(each, TimeBound)]

    @property
    def is_variant(self) -> bool:
        return any(isinstance(each, Variant) for each in self.customProperties)

    @property
    def inside(self) -> list[str]:
        """The keys and custom properties that say what it has inside."""
        said: dict[str, Any] = {"properties": self.properties, "items": self.items}
        said |= {"additionalProperties": self.map_value, "variant": self.is_variant}
        return [name for name, value in said.items() if value]

    @property
    def map_value(self) -> Element | None:
        """What each value is, of an object with any keys."""
        return next((each.value for each in self.customProperties if isinstance(each, MapValues)), None)


class Property(Element):
    """A field of an object."""

    name: str
    physicalName: str = ""
    unique: bool = False
    primaryKey: bool = False


for _model in (MapValues, Element, Property):
    _model.model_rebuild()


@dataclass
class ColumnReader:
    """Reads the columns of a document; each invalid part of one becomes a problem. `rules`: those inside of columns."""

    document: Document
    recorded: Mapping[str, str] | None
    limits: Limits
    rules: list[tuple[Key, RuleModel, str]] = field(default_factory=list)

    def column(self, key: Key, found: Element, path: str) -> Column:
        """Return a column; `path` is its name with those around it."""
        place, kind, facts = (*key, "logicalTypeOptions"), *self._type(key, found, path)
        for bound in ("minimum", "maximum"):
            with self.document.problem_at(*place, bound):
                facts[bound] = _bound(getattr(found.logicalTypeOptions, bound), kind, self.document.strict)
        values = [rule.arguments.validValues for rule in found.quality if isinstance(rule, ValuesRule)]
        facts |= {bound.property: bound.value for bound in found.bounds} | self._lengths(found, kind)
        name, place_in_record = (found.name, found.physicalName) if isinstance(found, Property) else ("", "")
        column = Column(
            name=name,
            type=kind.name,
            required=found.required,
            pattern=found.logicalTypeOptions.pattern,
            values=tuple(values[-1]) if values else (),
            fields=tuple(self._fields(key, found, kind, path)),
            physical_name=place_in_record,
            **facts,
        )
        self.document.check(_column_findings(replace(column, name=path), found, key))
        rules = [((*key, "quality", n), rule) for n, rule in enumerate(found.quality) if isinstance(rule, RuleModel)]
        self.rules += [(place, rule, path) for place, rule in rules]
        return column

    def _fields(self, key: Key, found: Element, kind: ColumnType, path: str) -> Iterator[Column]:
        for place, suffix, each in kind.declared_inside(found):
            yield self.column((*key, *place), each, f"{path}{suffix}")

    def _lengths(self, found: Element, kind: ColumnType) -> dict[str, int]:
        options = found.logicalTypeOptions
        least, most = kind.lengths
        longest = getattr(options, most)
        lengths = {"min_length": getattr(options, least)}
        return lengths | {"max_length": self.limits.elements if longest is None else longest}

    def _type(self, key: Key, found: Element, path: str) -> tuple[ColumnType, dict[str, Any]]:
        """Return the type of a column, and a decimal's digits; of a snapshot the type that its tables have."""
        logical, physical, form = found.logicalType, found.physicalType, found.logicalTypeOptions.format
        if self.recorded is not None:
            physical, form = self.recorded.get(path) or earlier_type(logical, physical), None
        if not physical and logical == "object":
            physical = "variant" if found.is_variant else "map" if found.map_value is not None else ""
        try:
            kind, digits = declared_type(logical, physical, form)
        except InvalidValue as error:
            self.document.refuse((*key, *error.key), error.why)
            kind, digits = default_type(logical), {}
        return kind, dict(digits)


def _bound(value: Any, kind: ColumnType, strict: bool) -> Value | None:
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


POINTED = re.compile(r'[^"\\\x00-\x1f\x7f]{1,128}')
"""A member that a JSON pointer names."""


def member_findings(base: Key, columns: Sequence[Column]) -> Iterator[Finding]:
    """Yield the paths into the JSON object that are invalid, or lead to what another column reads: case is ignored.

    A column may read a value inside of an object, or of a part that is kept, of which another column is made.
    """
    others = defaultdict[str, list[Read]](list)
    for n, column in enumerate(columns):
        key: Key = (*base, n, "physicalName")
        if column.physical_name and (why := _path_fault(column.physical_name)):
            yield key, why
        own = [Read(each, tuple(map(str.lower, each.path)), n > 0) for n, each in enumerate(column.single())]
        if clash := next((why for each in own for other in others[each.path[0]] if (why := each.clash(other))), ""):
            yield key, clash
        others[own[0].path[0]] += own
        inner, place = column, (*base, n)
        while inner.kind.element_key and inner.fields:
            inner, place = inner.fields[0], (*place, *inner.kind.element_key)
        yield from member_findings((*place, "properties"), inner.fields)


@dataclass(frozen=True)
class Read:
    """A value that a column reads, which may lie inside of the declared one; `path` ignores case."""

    column: Column
    path: tuple[str, ...]
    is_inside: bool

    def clash(self, other: Read) -> str:
        """Return why the record's reader cannot give both their values, or nobody would want it; empty if it can."""
        own, known, length = self.column, other.column, min(len(self.path), len(other.path))
        if self.path[:length] != other.path[:length]:
            return ""
        if len(self.path) != len(other.path):
            inner, outer = sorted((own, known), key=lambda each: -len(each.path))
            is_open = outer.kind.has_members or outer.kind.keeps_all
            where = f"{inner.member!r} of {inner.name} lies in {outer.member!r}, which {outer.name} reads"
            return "" if is_open else f"{where} as {outer.type_text}: one of them must go"
        if own.path != known.path or not (self.is_inside or other.is_inside):
            return f"{own.member!r} is the field {known.member!r} of {known.name}: case is ignored"
        as_both = f"{own.member!r} is read as {own.type_text} here and as {known.type_text} by {known.name}"
        return "" if own.kind.shares(known.kind) else f"{as_both}: one of them must go"


def _path_fault(member: str) -> str:
    """Return why a text is no path in the record; empty when it is one."""
    parts = member_path(member)
    if member.startswith("/"):
        wrong = next((part for part in parts if not POINTED.fullmatch(part)), None)
        return "" if wrong is None else f"each part of a JSON pointer names a member, {shown(wrong)} does not"
    if all(MEMBER.fullmatch(part) for part in parts):
        return ""
    names = "must be letters, digits, _ and -, beginning with a letter"
    return f"{names}, with dots between the members of a path (or a JSON pointer, as /a~1b/c), is {shown(member)}"


ONLY_OF = {
    **dict.fromkeys(("minItems", "maxItems"), "arrays"),
    **dict.fromkeys(("minProperties", "maxProperties"), "maps"),
}
"""What an option is for, if not for strings."""


def _column_findings(column: Column, found: Element, key: Key) -> Iterator[Finding]:
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
        only = ONLY_OF.get(name, "strings")
        yield (*options, name), f"is for {only} only; {column.name} is of type {column.type_text}"
    if column.values and "validValues" not in column.kind.options:
        yield (*key, "quality"), f"validValues is for strings only; {column.name} is of type {column.type_text}"
    least, most = column.kind.lengths
    for name, length in ((least, column.min_length), (most, column.max_length)):
        if length < 0:
            yield (*options, name), f"must be 0 or more, is {length}"
    if column.min_length > column.max_length:
        yield (*options, least), f"{column.min_length} is greater than {most} {column.max_length}"
    if column.pattern is not None and (why := pattern_fault(column.pattern, java_only=True, longest=column.max_length)):
        yield (*options, "pattern"), why
    if not 1 <= column.precision <= MAX_PRECISION or column.scale > column.precision:
        why = f"must be decimal(p,s) with 1 <= p <= {MAX_PRECISION} and s <= p, is {found.physicalType!r}"
        yield (*key, "physicalType"), why
    for each in found.bounds:
        if each.property not in column.kind.options:
            why = f"{each.property} is for timestamps only; {column.name} is of type {column.type_text}"
            yield (*key, "customProperties"), why
    yield from _key_findings(column, found, key)
    yield from _inside_findings(column, found, key)
    for n, rule in enumerate(found.quality):
        if isinstance(rule, ValuesRule) and rule.mustBe != 0:
            why = f"must be 0: a record with another value is rejected; is {rule.mustBe}"
            yield (*key, "quality", n, "mustBe"), why


def _key_findings(column: Column, found: Element, key: Key) -> Iterator[Finding]:
    if not isinstance(found, Property) or not found.primaryKey:
        return
    if column.kind.no_key:
        yield (*key, "primaryKey"), f"a {column.type_text} is no identity: {column.kind.no_key}"
    elif column.name != found.name:
        path = f"declare a column of its own with physicalName: {column.name}"
        yield (*key, "primaryKey"), f"{column.name} lies in another column, and an identity does not; {path}"


ONLY_FOR: Mapping[str, tuple[str, str]] = {
    "properties": ("properties", "is for objects"),
    "items": ("items", "is for arrays"),
    "additionalProperties": ("customProperties", "additionalProperties is for objects without properties"),
    "variant": ("customProperties", "variant is for logicalType object"),
}
"""Where a contract says what is inside, and of what."""


def _inside_findings(column: Column, found: Element, key: Key) -> Iterator[Finding]:
    """Yield where what is declared inside of a column does not belong to its type."""
    kind = column.kind
    for name in (name for name in found.inside if name != kind.inside):
        place, only = ONLY_FOR[name]
        yield (*key, place), f"{only} only; {column.name} is of type {column.type_text}"
    if kind.is_nested and not column.fields:
        why = "must list what is inside; to keep the part as JSON: customProperties: [{property: variant, value: true}]"
        yield (*key, kind.inside), why
    names = ((("properties", n, "name"), each.name) for n, each in enumerate(found.properties))
    yield from (((*key, *place), why) for place, why in accepted_names(names))
    if "[]" in column.name and any(isinstance(rule, RuleModel) for rule in found.quality):
        why = f"a rule of Great Expectations is about one value of a record, and a record has several {column.name}"
        yield (*key, "quality"), f"{why}; logicalTypeOptions and validValues hold for each"
